"""Setting a machine up, and judging whether it is: standard library only.

``python3 -m testbed.host`` runs before the virtual environment exists, so nothing in this package
(nor anything it imports at the top of a module) needs an installed dependency. ``testbed doctor``
shows the same checks and applies the same fixes.
"""
