"""``python -m testbed`` is the ``testbed`` command."""

from testbed.cli import main

if __name__ == "__main__":
    main()
