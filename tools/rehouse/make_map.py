"""Write ``map.json`` from a plan of targets and what has changed since: ``python -m tools.rehouse.make_map PLAN``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

T = "testbed/"
PLACED: dict[str, list[str]] = {
    "testbed/host/uml/watchdog.py": ["guest/keeper.py"],
    "testbed/process.py": ["process.py"],
    "testbed/bench/links/lateness.py": ["bench/with_pyroute2.py"],
    "testbed/bench/results.py": ["cli/suite_table.py"],
    "testbed/training/models/architectures.py": ["train/models/layers.py"],
    "testbed/training/ddp/hook.py": ["train/ddp_hook.py"],
    "testbed/training/ddp/report.py": [
        "train/ddp_row.py",
        "train/ddp_report.py",
        "train/ddp_carried.py",
    ],
    "testbed/compress/kernels/base.py": ["compress/kernels/init__base.py"],
    "testbed/errors.py": ["errors.py", "main__missing.py"],
    "testbed/control/__init__.py": ["control/builtin.py"],
    "testbed/host/__main__.py": ["setup/consent.py"],
    "analysis/timeline.py": ["analysis/timeline/chrome.py"],
    "testbed/bench/reference.py": [
        "compress/kernels/reference_index.py",
        "compress/values/reference.py",
        "compress/values/reference_groups.py",
    ],
    "testbed/runner/exec/trial.py": ["job/moved.py", "job/watch.py"],
    "testbed/bench/compress/select.py": ["bench/compress/threshold.py"],
    "testbed/compress/kernels/jit.py": ["compress/kernels/jit.py"],
    "testbed/training/step.py": ["train/way.py"],
    "testbed/links/replay/delivery_report.py": [
        "links/outages_seen.py",
    ],
    "testbed/training/compute.py": ["train/compute.py", "train/workshop.py", "train/rehearsal.py"],
    "testbed/runner/run.py": ["session/parallel.py"],
    "testbed/training/tasks/datasets.py": [
        f"train/tasks/{name}.py" for name in ("digits", "mnist", "cifar", "synthetic")
    ],
    "testbed/fidelity/verdict.py": ["record/certificate.py"],
    "testbed/compress/builtin.py": ["compress/builtin.py", "compress/codes.py"],
    "testbed/compress/base.py": ["compress/payload.py"],
    "testbed/training/averaging.py": ["train/agreement.py"],
    "testbed/training/gradient_codec.py": ["train/bucket_order.py"],
    "testbed/scenario/link_state.py": ["scenario/impairments.py"],
    "testbed/scenario/node_timeline.py": [
        "scenario/node_events.py",
        "scenario/absences.py",
        "scenario/traffic.py",
    ],
    "testbed/traces/rate_trace.py": ["traces/source.py"],
    "testbed/fidelity/evidence.py": ["record/loss.py", "record/finding.py", "record/beta.py"],
    "testbed/training/tasks/__init__.py": ["train/tasks/builtin.py"],
    "testbed/transport/multicast/udp.py": ["exchange/multicast/outgoing.py"],
    "testbed/runner/manifest_writer.py": ["session/spread.py"],
    "testbed/host/images.py": ["setup/own_images.py", "setup/wheels.py"],
    "testbed/runner/cross_traffic_node.py": ["session/iperf.py"],
    "testbed/bench/links/alternatives.py": ["bench/observer.py"],
    "testbed/topology.py": ["fabric/limits.py", "fabric/base__topology.py"],
    "testbed/training/job.py": ["train/sizes__job.py", "train/seen.py"],
    "testbed/user_files.py": ["user_files.py", "job/output.py"],
    "testbed/journal.py": ["fabric/journal.py"],
    "testbed/cgroups.py": ["fabric/cgroups.py"],
    "testbed/records/events.py": [
        "record/events.py",
        "record/bucket_events.py",
        "record/apart_events.py",
        "record/dealt_events.py",
        "record/summary__phases.py",
    ],
    "testbed/fabric/forker.py": ["fabric/forker.py", "fabric/node_logs.py"],
    "testbed/fabric/docker/fabric.py": [
        "fabric/docker/fabric.py",
        "fabric/docker/launch.py",
        "fabric/docker/mounts.py",
    ],
    "testbed/fabric/fork_server.py": ["fabric/forking.py"],
    "testbed/fabric/file_view.py": ["fabric/view.py"],
    "testbed/runner/exec/launch_spec.py": [
        "job/order.py",
        "job/environment.py",
        "job/tenant.py",
        "job/fit.py",
    ],
    "testbed/links/tc/netlink.py": ["links/channel.py", "links/messages.py"],
    "testbed/links/tc/pyroute2_plugins.py": ["links/plugins.py"],
    "testbed/runner/failure.py": ["session/failure.py"],
    "testbed/records/link_log.py": ["record/changes.py"],
    "testbed/runner/bulk_flow.py": ["session/flow.py"],
    "testbed/host/docker_engine.py": ["setup/own_engine.py"],
    "testbed/bench/links/departures.py": ["bench/departures.py", "bench/suites/departures.py"],
    "testbed/cli/tc_commands.py": ["cli/tc_commands.py"],
    "testbed/comm_trace/chakra_protobuf.py": [
        "messages/chakra/wire.py",
        "messages/chakra/nodes.py",
    ],
    "testbed/training/ddp_overlap.py": ["train/overlap.py", "train/backward.py"],
    "analysis/papers/__init__.py": ["analysis/papers/__init__.py", "analysis/papers/claim.py"],
    "analysis/papers/adatopk.py": ["analysis/papers/adatopk.py"],
    "analysis/papers/algc.py": [
        "analysis/papers/algc.py",
        "analysis/factorial.py",
        "analysis/factorial_figure.py",
    ],
    **{
        f"analysis/figures/job_{name}.py": [f"analysis/figures/job_{name}.py"]
        for name in ("bytes", "phases", "steps", "values")
    },
    "testbed/compress/kernels/compilation.py": [
        f"compress/kernels/{name}.py" for name in ("cache", "warm", "grid")
    ],
    "analysis/hook_speed.py": ["analysis/hook_speed.py"],
    "testbed/records/stored.py": ["record/stored.py", "record/packed.py"],
    "testbed/links/replay/interval_errors.py": [
        "links/bins.py",
        "links/lateness.py",
        "links/held.py",
    ],
    "testbed/cli/replay.py": ["cli/replay.py", "cli/replay_controller.py"],
    "testbed/control/adalag.py": ["control/adalag.py", "control/lags.py"],
    "testbed/host/checks.py": [
        "setup/checks.py",
        "setup/network_checks.py",
        "fabric/docker/subnets.py",
        "setup/check.py",
    ],
    "testbed/traces/readers.py": ["traces/read.py", "traces/formats.py", "traces/json_files.py"],
    "testbed/scenario/recorded_paces.py": ["scenario/paced.py", "train/pace_file.py"],
    "testbed/cli/validate.py": ["cli/validate.py", "cli/init.py"],
    "testbed/cli/report.py": ["cli/report.py", "cli/compare.py"],
    "testbed/training/server.py": ["train/server.py", "train/averager.py", "train/async_server.py"],
    "testbed/host/paths.py": [
        "setup/paths.py",
        "setup/content.py",
        "setup/venv.py",
        "setup/torch_build.py",
        "setup/kernels.py",
        "setup/locks.py",
    ],
    "testbed/compress/kernels/random.py": ["compress/kernels/random.py"],
    "testbed/compress/kernels/random_loops.py": [
        "compress/kernels/loops_random.py",
        "compress/kernels/loops_seeded.py",
    ],
    "testbed/bench/compress/inputs.py": [
        "bench/compress/recorded.py",
        "bench/compress/timing.py",
        "bench/compress/trained.py",
        "compress/kernels/loops_read.py",
    ],
    "testbed/fabric/sim/link_state.py": [
        "fabric/sim/board.py",
        "fabric/sim/shares.py",
        "fabric/sim/jitter.py",
    ],
    "testbed/fabric/sim/tcp_model.py": [
        "fabric/sim/windows.py",
        "fabric/sim/small_queues.py",
        "fabric/sim/flow.py",
        "fabric/sim/loss.py",
    ],
    "testbed/fabric/sim/node.py": ["fabric/sim/traffic.py"],
    "testbed/traces/csv_reader.py": ["traces/table.py"],
    "testbed/bench/links/rates.py": ["bench/trial.py", "bench/witness.py"],
    "testbed/runner/real_links.py": ["session/real.py", "session/play_real.py"],
    "testbed/bench/compress/cli.py": ["cli/bench_compress.py"],
    "testbed/scenario/link_model.py": [
        "scenario/link.py",
        "scenario/settings.py",
        "scenario/events.py",
    ],
    "testbed/bench/busy.py": ["bench/busy.py"],
    "testbed/links/capabilities.py": ["links/probe.py", "links/capacity.py"],
    "testbed/links/unshaped.py": ["links/unshaped.py"],
    "testbed/runner/preflight.py": ["session/preflight.py"],
    "testbed/runner/session.py": [
        "session/session.py",
        "session/spare.py",
        "session/conditions.py",
    ],
    "testbed/links/tc/htb.py": ["links/root.py", "links/htb.py"],
    "testbed/links/network/wiring.py": ["links/wiring.py"],
    "testbed/bench/controllers.py": [
        "bench/response/curves.py",
        "bench/response/judge.py",
        "bench/response/settle.py",
        "bench/response/run.py",
    ],
    "testbed/bench/waveforms.py": [
        "bench/response/waveforms.py",
        "bench/response/simulate.py",
        "bench/response/programme.py",
    ],
    "testbed/runner/comm_replay_trial.py": ["session/play.py", "session/play_virtual.py"],
    "testbed/links/replay/link_player.py": [
        "links/track.py",
        "links/end_report.py",
        "links/slow.py",
    ],
    "analysis/job_tables.py": ["analysis/jobs/table.py"],
    "testbed/bench/compress/payload.py": ["bench/compress/wire.py", "bench/compress/quantize.py"],
    "testbed/training/worker.py": [
        "train/worker.py",
        "train/stop.py",
        "train/evaluate.py",
        "train/watch.py",
    ],
    "testbed/traces/generate.py": ["traces/generate.py", "traces/write.py"],
    "testbed/scenario/model.py": ["scenario/model.py", "scenario/dealt.py", "scenario/pace.py"],
    "testbed/links/network/devices.py": ["links/devices.py", "links/routes.py"],
    "testbed/fabric/sim/network.py": [
        "fabric/sim/network.py",
        "fabric/sim/costs.py",
        "fabric/sim/sampler.py",
    ],
    "testbed/links/network/bridges.py": ["links/bridges.py"],
    "testbed/runner/signals.py": ["session/failure.py"],
    "testbed/records/inferred_steps.py": ["record/inferred.py", "record/pauses.py"],
    "testbed/records/job_steps.py": ["record/job_steps.py", "record/job_events.py"],
    "testbed/records/intervals.py": ["record/spans.py", "record/quantiles.py", "record/host.py"],
    "testbed/records/run_directory.py": ["record/readable.py"],
    "testbed/links/tc/parameters.py": ["links/plan.py", "links/draws.py"],
    "testbed/links/shaper.py": ["links/shaper.py", "links/end.py"],
}
SAYS = {
    "testbed/compress/kernels/base.py": "What kernels do for compressors, and the statistics that they return.",
    "testbed/runner/comm_replay_trial.py": "One replay of a communication trace, and the same in virtual time",
    "testbed/bench/controllers.py": "How controllers answer to changes of bandwidth",
    "testbed/bench/waveforms.py": "Bandwidths over time that controllers are tried with",
    "testbed/runner/comm_replay.py": "Replays of communication traces: one trial, the same in virtual time, and all of them",
    "testbed/links/tc/htb.py": "The root queueing discipline of a device, and its HTB classes",
    "testbed/links/capabilities.py": "What this kernel offers, and what rates this machine can move",
    "testbed/links/unshaped.py": "What this machine moves between namespaces without a limit, measured",
    "testbed/runner/real_links.py": "Trials on real links: training, and replays of communication traces",
    "testbed/training/ddp/report.py": "A hook's algorithm, what it reports, and what outlives new buckets",
    "testbed/compress/kernels/random_loops.py": "Loops that draw random numbers by counters",
    "testbed/bench/reference.py": "Plain codecs that tests and benchmarks compare ours with",
    "testbed/training/tasks/datasets.py": "The data sets that ship",
    "testbed/compress/kernels/compilation.py": "Compilation by numba: its cache, warming up, sizes of blocks",
    "testbed/topology.py": "Nodes, racks, cables and interfaces, and what a node may use",
    "testbed/scenario/node_timeline.py": "What happens to nodes in a run: pauses, kills, absences, cross traffic",
    "testbed/scenario/recorded_paces.py": "Recorded step times as paces, and their file format",
    "testbed/traces/table.py": "Tables of numbers with line numbers",
    "testbed/host/paths.py": "Folders of this checkout, its environment, its lock files, PyTorch and compiled kernels",
    "testbed/host/uml/watchdog.py": "Stands between the host and the guest kernel",
    "testbed/user_files.py": "Files that a user names, and logs of what others print",
    "testbed/journal.py": "What each run made outside its own processes, on disk before it is made",
    "testbed/cgroups.py": "Control groups of nodes",
    "testbed/runner/exec/launch_spec.py": "What a foreign job's processes are started with: command, environment, user",
    "testbed/comm_trace/chakra_protobuf.py": "Protocol buffers of Chakra's execution traces",
    "testbed/training/ddp_overlap.py": "Buckets of PyTorch's DDP, sent while the backward pass goes on",
    "testbed/bench/links/departures.py": "When each packet of a saturated link leaves it, against an exact queue",
    "analysis/papers/__init__.py": "Verdicts on published claims",
    "testbed/records/stored.py": "Records that stay in their files or are packed, for runs of a day",
    "testbed/records/inferred_steps.py": "Steps of a job that marks none, inferred from what its links carried",
    "testbed/records/intervals.py": "Intervals of time, quantiles, and what the host's processors did in intervals",
    "testbed/links/replay/interval_errors.py": "Errors of a link in intervals, and how late its changes were",
    "testbed/bench/compress/cli.py": "``testbed bench`` on compressors",
    "testbed/scenario/pacing.py": "Models of step times, recorded ones and their file format",
}


def main() -> None:
    """Take the plan, place what is new, drop what is gone, report what has no place."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    listed = subprocess.check_output(
        ["git", "ls-files", "testbed/*.py", "analysis/*.py"], text=True
    ).split()
    old = (
        json.loads(Path(__file__).with_name("map.json").read_text())
        if Path(__file__).with_name("map.json").exists()
        else {}
    )
    listed += [part for parts in old.get("carve", {}).values() for part in parts]
    targets: dict[str, dict] = {}
    placed = {
        source if source.startswith("analysis/") else T + source: target
        for target, sources in PLACED.items()
        for source in sources
    }
    for target, entry in plan["targets"].items():
        for source in entry["from"]:
            if source in listed and source not in placed:
                targets.setdefault(target, {"says": entry["says"], "from": []})["from"].append(
                    source
                )
    for source, target in placed.items():
        if source in listed:
            says = SAYS.get(target) or plan["targets"].get(target, {}).get("says", "")
            targets.setdefault(target, {"says": says, "from": []})["from"].append(source)
    known = {source for entry in targets.values() for source in entry["from"]}
    for source in listed:
        if source not in known:
            print("no place:", source)
    out = {"targets": dict(sorted(targets.items())), "removed": {}}
    for key in ("carve", "names", "data", "packages", "concatenate"):
        out[key] = old.get(key, {} if key != "concatenate" else ["WARM"])
    Path(__file__).with_name("map.json").write_text(
        json.dumps(out, indent=1, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()
