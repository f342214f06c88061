"""What nodes print is kept up to a bound, and read to its end all the same."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from testbed.fabric.base import RunContext
from testbed.fabric.forker import NodeLogs
from testbed.user_files import PinnedFolder

END = "\ntestbed: more than 250 bytes: what came after them was not kept\n"


def prints(logs: NodeLogs, node: str, script: str) -> int:
    """The exit status of a shell that ``script`` was given."""
    with logs.open(node) as output:
        process = subprocess.Popen(["sh", "-c", script], stdout=output, stderr=output)
    status = process.wait(20.0)
    logs.settle(node)
    return status


def test_so_much_is_kept_and_no_more(tmp_path: Path) -> None:
    logs = NodeLogs(lambda: PinnedFolder(tmp_path), most_bytes=250)
    loud = "head -c 200 /dev/zero | tr '\\0' x; sleep 0.05; head -c 1000000 /dev/zero | tr '\\0' y; echo end >&2"
    assert prints(logs, "loud", loud) == 0
    assert prints(logs, "quiet", "echo all") == 0
    logs.close()
    assert (tmp_path / "loud.log").read_text() == 200 * "x" + 50 * "y" + END
    assert (tmp_path / "quiet.log").read_text() == "all\n"


def test_a_node_that_is_started_again_has_no_more_room(tmp_path: Path) -> None:
    logs = NodeLogs(lambda: PinnedFolder(tmp_path), most_bytes=250)
    for letter, size in (("a", 100), ("b", 100), ("c", 100)):
        prints(logs, "worker-0", f"head -c {size} /dev/zero | tr '\\0' {letter}")
    assert (tmp_path / "worker-0.log").read_text() == 100 * "a" + 100 * "b" + 50 * "c" + END


def test_children_that_hold_the_output_are_not_waited_for(tmp_path: Path) -> None:
    logs = NodeLogs(lambda: PinnedFolder(tmp_path))
    with logs.open("worker-0") as output:
        process = subprocess.Popen(["sh", "-c", "echo last words; exec sleep 300"], stdout=output)
    try:
        settling = threading.Thread(target=logs.settle, args=("worker-0",), daemon=True)
        settling.start()
        settling.join(20.0)
        assert not settling.is_alive()
        assert (tmp_path / "worker-0.log").read_text() == "last words\n"
        logs.close()
    finally:
        process.kill()
        process.wait()


def test_logs_go_where_the_run_began_whatever_has_its_path_now(tmp_path: Path) -> None:
    began, outside = tmp_path / "run", tmp_path / "outside"
    began.mkdir()
    (outside / "log").mkdir(parents=True)
    context = RunContext("a-run", began, "a-token", folder=PinnedFolder(began))
    logs = NodeLogs(lambda: context.opened().folder("log"))
    began.rename(tmp_path / "moved")
    began.symlink_to(outside)
    assert prints(logs, "worker-0", "echo said") == 0
    logs.close()
    assert (tmp_path / "moved/log/worker-0.log").read_text() == "said\n"
    assert list((outside / "log").iterdir()) == []


def test_a_run_without_an_open_directory_has_the_one_at_its_path(tmp_path: Path) -> None:
    context = RunContext("a-run", tmp_path / "new" / "run", "a-token")
    assert not context.directory.exists()
    context.opened().write("made", b"")
    assert (tmp_path / "new" / "run" / "made").exists()
