"""Whatever is wrong with a scenario is said with file, line, key and what would work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.scenario.load import MAX_BYTES, load

GOOD = """\
name: x
nodes:
  server: {role: server}
  worker: {role: worker, count: 2}
links:
  default:
    up: {rate: 10 Mbit/s, queue: 50 ms}
    down: {rate: 10 Mbit/s, queue: 50 ms}
events:
  - {kind: step, links: [all], at: 1 s, rate: 5 Mbit/s}
  - {kind: trace, links: [server], at: 2 s, file: good.csv, at_end: loop}
train: {stop: {steps: 5}}
algorithms: [none]
peer_timeout: 10 s
"""
FLOW = "traffic: [{name: f, from: worker-0, to: server, "
GOOD_TRACE = "time_s,rate_mbit_s\n0,5\n1,0\n2,7\n"
FAST_TRACE = "time_ms,rate_mbit_s\n0,5\n0.5,0\n1,7\n1.5,5\n"


def complaint(folder: Path, text: str | bytes) -> str:
    path = folder / "s.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    (folder / "good.csv").write_text(GOOD_TRACE)
    (folder / "fast.csv").write_text(FAST_TRACE)
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(f"{folder}/", "")


def test_the_scenario_that_is_broken_below_is_good(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD)
    (tmp_path / "good.csv").write_text(GOOD_TRACE)
    assert load(tmp_path / "s.yaml").scenario.name == "x"


# What is replaced, by what, and what must be said about it.
REPLACED = [
    ("name: x", "nam: x", "s.yaml:1: nam: unknown key 'nam': did you mean 'name'?"),
    ("name: x", "nam: x", "s.yaml:1: name: this key is missing"),
    ("name: x", "name: X y", "s.yaml:1: name: 'X y' does not work: a name has lower-case"),
    ("role: server}", "role: boss}", "s.yaml:3: nodes.server.role: 'boss' does not work: use 'server'"),
    ("role: server}", "rol: server}", "s.yaml:3: nodes.server.rol: unknown key 'rol': did you mean"),
    ("count: 2", "count: 0", "s.yaml:4: nodes.worker.count: 0 does not work"),
    ("count: 2", "count: 2, limits: {memory: 1 MiB}", "s.yaml:4: nodes.worker.limits: `memory` of 1 MiB is too little"),
    ("count: 2", "count: 2, limits: {memory: 1 GiB, tmp: 2 GiB}", "`tmp` is a part of `memory`"),
    ("count: 2", "count: 2, limits: {processes: 0}", "s.yaml:4: nodes.worker.limits.processes: 0 does not work"),
    ("count: 2", f"count: {'9' * 5000}", "s.yaml:4: '9999"),
    ("count: 2}", "count: 10000}\n  more: {role: host, count: 2000}", "nodes: more than 12000 nodes"),
    ("  server: {role: server}\n", "", "Add `server: {role: server}` to `nodes`"),
    ("{role: worker, count: 2}", "{role: server}", "s.yaml:2: nodes: no worker"),
    ("worker: {", "worker-0: {role: worker}\n  worker: {", "two things are called 'worker-0'"),
    ("worker: {", "all: {", "s.yaml:4: nodes.all: 'all' means something else"),
    ("worker: {", "Worker: {", "s.yaml:4: nodes.Worker: 'Worker' is not a name"),
    ("up: {rate: 10 Mbit/s", "up: {rate: 10", "s.yaml:7: links.default.up.rate: rate 10 has no unit"),
    ("up: {rate: 10 Mbit/s", "up: {rate: -1 Mbit/s", "s.yaml:7: links.default.up.rate: rate '-1 Mbit/s' is"),
    ("up: {rate: 10 Mbit/s", "up: {rate: .nan", "s.yaml:7: links.default.up.rate: rate nan has no unit"),
    ("up: {rate: 10 Mbit/s", "up: {rate: nan Mbit/s", "write a number and a unit"),
    ("up: {rate: 10 Mbit/s", "up: {rate: 10 Mbps", "use one of bit/s, kbit/s, Mbit/s, Gbit/s"),
    ("up: {rate: 10 Mbit/s, ", "up: {", "s.yaml:7: links.default.up: server up has no rate"),
    ("up: {rate: 10 Mbit/s, queue: 50 ms}", "up: {rate: 10 Mbit/s}", "server up has no queue"),
    ("queue: 50 ms", "queue: 50", "s.yaml:7: links.default.up.queue: 50 is not a queue length"),
    ("queue: 50 ms", "queue: 1 packet", "holds 1514 B: fewer than two packets. Write at least"),
    ("queue: 50 ms", "queue: 1 ms", "1 ms at 10 Mbit/s, holds 1250 B: fewer than two packets"),
    ("queue: 50 ms}", "dealy: 1 ms}", "unknown key 'dealy': did you mean 'delay'? Known: rate, queue"),
    ("queue: 50 ms}", "queue: 50 ms, jitter: 1 ms}", "jitter needs a delay"),
    ("queue: 50 ms}", "delay: 2 h, queue: 50 ms}", "s.yaml:7: links.default.up.delay: server up: 2 h"[:-3]),
    ("queue: 50 ms}", "delay: 10 s, queue: 50 ms}", "10 s is not longer than the longest outage, 1 s of server up and the way there and back, 20 s between server"),
    ("queue: 50 ms}", "delay: 3 s, queue: 50 ms, jitter: 1 s, slot: {shortest: 0 s, longest: 2 s}}", "12 s between server and worker-0"),
    ("queue: 50 ms}", "delay: 4.5 s, queue: 50 ms}", "the longest outage, 1 s of server up and the way there and back, 9 s b"),
    ("queue: 50 ms}", "delay: 4.5 s, queue: 50 ms}", "nodes would give each other up; write more than 10 s"),
    ("links:\n", "racks: {a: {members: [worker], up: {rate: 1 Gbit/s, queue: 1 MB, delay: 10 s}, down: {rate: 1 Gbit/s, queue: 1 MB}}}\nlinks:\n", "10 s between server and worker-0"),
    ("links:\n", "racks: {a: {members: [worker], up: {queue: 1 MB}}}\nlinks:\n", "s.yaml:5: racks.a.up: a up has no rate. Give one in `racks.a.up`: racks inherit nothing"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: random, probability: 0.1, correlation: 0.2}}", "s.yaml:7: links.default.up.loss: random loss has no `correlation`: for losses that come in bursts use `model: gilbert-elliott`"),
    ("queue: 50 ms}", "queue: 50 ms, corrupt: {probability: 0.1, correlation: 1}}", "up.corrupt: server up: with a correlation of 1 "),
    ("queue: 50 ms}", "queue: 50 ms, duplicate: {probability: 0.1, correlation: 0.991}}", "0.99 is the greatest"),
    ("queue: 50 ms}", "queue: 50 ms, delay: 1 ms, reorder: {probability: 0.1, correlation: 0.991}}", "0.99 is the greatest"),
    ("at: 1 s, rate: 5 Mbit/s", "at: 1 s, loss: {model: random, probability: 0.1, correlation: 0}", "events[0].loss: random loss has no `correlation`"),
    ("queue: 50 ms}", "queue: 50 ms, loss: 0.9995}", "0.9995 of all packets would be lost: for that use `kind: outage`; less than 0.999 is possible"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: gilbert-elliott, p: 1, r: 1e-7}}", "up.loss: server up: 0.9999999 of all packets would be lost"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: four-state, p13: 0.1, p31: 0, p32: 1e-7}}", "of all packets would be lost"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: four-state, p13: 0.1, p31: 0, p32: 1, p23: 0}}", "p23 is 0: after p32 nothing would be lost"),
    ("queue: 50 ms}", "queue: 50 ms, delay: 1 ms, jitter: 2 ms}", "a jitter of 2 ms is more than the delay, 1 ms"),
    ("queue: 50 ms}", "queue: 50 ms, distribution: normal}", "up.distribution: server up: distribution needs a jitter"),
    ("queue: 50 ms}", "queue: 50 ms, distribution: poisson}", "use 'uniform', 'normal', 'pareto' or 'paretonormal'"),
    ("queue: 50 ms}", "queue: 50 ms, delay_correlation: 0.2}", "delay_correlation needs a jitter"),
    ("queue: 50 ms}", "queue: 50 ms, reorder: 0.1}", "s.yaml:7: links.default.up.reorder: server up: reorder needs a delay"),
    ("queue: 50 ms}", "queue: 50 ms, reorder: {probability: 0, gap: 5}}", "its gap needs a probability above 0"),
    ("queue: 50 ms}", "queue: 50 ms, reorder: {gap: 5}}", "up.reorder.probability: this key is missing"),
    ("queue: 50 ms}", "queue: 50 ms, reorder: {prob: 5}}", "up.reorder.prob: unknown key 'prob': Known: probability, correlation, gap"),
    ("queue: 50 ms}", "queue: 50 ms, corrupt: {probability: 0, correlation: 0.5}}", "its correlation needs a probab"),
    ("queue: 50 ms}", "queue: 50 ms, duplicate: {probability: 2}}", "up.duplicate.probability: 2 does not work"),
    ("queue: 50 ms}", "queue: 50 ms, loss: 1}", "up.loss: server up: every packet would be lost: for that use"),
    ("queue: 50 ms}", "queue: 50 ms, loss: true}", "up.loss: True does not work: it should be a valid number"),
    ("queue: 50 ms}", "queue: 50 ms, loss: 1 %}", "up.loss: '1 %' does not work: write a share such as 0.01"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {}}", "up.loss.model: this key is missing: use one of random, gilbert-el"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: gilbert}}", "unknown model 'gilbert': did you mean 'gilbert-elliott'"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: gilbert-elliott, p: 0.1, r: 0}}", "up.loss.r: 0 does not work"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: gilbert-elliott, p: 2, r: 1}}", "up.loss.p: 2 does not work"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: gilbert-elliott, p: 1, r: 1, q: 1}}", "up.loss.q: unknown key 'q'"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: four-state, p13: 0.9, p14: 0.2}}", "p13 + p14 is more than 1"),
    ("queue: 50 ms}", "queue: 50 ms, loss: {model: four-state, p13: 0.1, p31: 0}}", "a burst would never end"),
    ("queue: 50 ms}", "queue: 50 ms, ecn: true}", "up.ecn: server up: ecn needs a loss"),
    ("queue: 50 ms}", "queue: 50 ms, slot: {shortest: 2 ms, longest: 1 ms}}", "its shortest time, 2 ms, is above its"),
    ("queue: 50 ms}", "queue: 50 ms, slot: {shortest: 2 h}}", "a slot lasts 3600 s at most"),
    ("queue: 50 ms}", "queue: 50 ms, slot: {longst: 1 ms}}", "up.slot.longst: unknown key 'longst': did you mean 'longest'? Known: shortest,"),
    ("stop:", "participation: {wrkers: 1}, stop:", "train.participation.wrkers: unknown key 'wrkers': did you mean 'workers'? Known: workers, share"),
    ("queue: 50 ms}", "queue: 50 ms, slot: 5 ms}", "up.slot: keys with values are needed here, not '5 ms'"),
    ("queue: 50 ms}", "queue: 50 ms, overhead: 70 kB}", "70 kB a packet is too much: 65535 B is the most"),
    ("queue: 50 ms}", "queue: 50 ms, seed: -1}", "s.yaml:7: links.default.up.seed: -1 does not work"),
    ("queue: 50 ms", "queue: 5 GB", "holds more than 4294967295 B. No kernel holds so many"),
    ("queue: 50 ms}", "queue: 50 ms, loss: 5}", "s.yaml:7: links.default.up.loss: 5 does not work"),
    ("queue: 50 ms}\n    down: {", "queue: 50 ms}\n    down: {at: nic, ", "s.yaml:8: links.default.down.at"),
    ("  default:", "  wroker: {}\n  default:", "s.yaml:6: links.wroker: no node or group is called"),
    ("  default:", "  wroker: {}\n  default:", "did you mean 'worker'? Known: `default`, server, worker"),
    ("links: [all]", "links: all", "s.yaml:10: events[0].links: a list is needed"),
    ("links: [all]", "links: []", "s.yaml:10: events[0].links: "),
    ("links: [all]", "links: [worker-2]", "s.yaml:10: events[0].links[0]: no node or group is called"),
    ("kind: step", "kind: setp", "s.yaml:10: events[0].kind: unknown kind 'setp': did you mean 'step'?"),
    ("kind: step, ", "", "s.yaml:10: events[0].kind: this key is missing: use one of absent, flap, kill, outage"),
    ("at: 1 s", "at: 1", "s.yaml:10: events[0].at: duration 1 has no unit"),
    ("at: 1 s", "at: -1 s", "s.yaml:10: events[0].at: duration '-1 s' is negative"),
    ("at: 1 s", "at: 3 s", "s.yaml:11: events[1].at: time goes backwards: 2 s after 3 s"),
    ("at: 1 s, rate", "at: 1 s, raet", "events[0].raet: unknown key 'raet': did you mean 'rate'?"),
    ("file: good.csv", "file: none.csv", "s.yaml:11: events[1].file: none.csv: cannot be read: No such"),
    ("file: good.csv", "file: .", "s.yaml:11: events[1].file: "),
    ("file: good.csv, ", "", "s.yaml:11: events[1].file: this key is missing"),
    ("at_end: loop", "at_end: lop", "use 'loop', 'hold' or 'stop'"),
    ("at_end: loop", "at_end: loop, offset: 3 s", "3 s is past the end of the trace, which lasts 3 s"),
    ("at_end: loop", "at_end: loop, scale: .inf", "s.yaml:11: events[1].scale"),
    ("at: 1 s, rate: 5 Mbit/s", "at: 1 s", "s.yaml:10: events[0].kind: this step changes nothing: give one of rate, q"),
    ("rate: 5 Mbit/s", "jitter: 1 ms", "s.yaml:10: events[0].jitter: server up: jitter needs a delay"),
    ("rate: 5 Mbit/s", "queue: 1 packet", "s.yaml:10: events[0].queue: server up: the queue of server up,"),
    ("rate: 5 Mbit/s", "rate: 0 bit/s, queue: 5 ms", "at 0 bit/s, holds 0 B: fewer than two packets"),
    ("rate: 5 Mbit/s", "loss: {model: random}", "s.yaml:10: events[0].loss.probability: this key is missing"),
    ("rate: 5 Mbit/s", "seed: 5", "s.yaml:10: events[0].seed: unknown key 'seed'"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: flap, links: [all], for: 1 s, every: 1 s, times: 2", "events[0].every: outages of 1 s every 1 s leave no time between them"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: flap, links: [all], for: 1 s, every: 2 s, times: 100001", "events[0].times: more than 100000 outages"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: flap, links: [all], for: 1 s, every: 2 s, times: 0", "events[0].times: 0 does not work"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: flap, links: [all], for: 0 s, every: 2 s, times: 1", "events[0].for: an outage lasts longer"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: partition, links: [all], direction: up, for: 1 s", "events[0].direction: unknown key"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: partition, links: [all], for: 0 s", "events[0].for: a partition lasts longer"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: partition, links: [all], for: 10 s", "not longer than the longest outage, 10 s"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: pause, nodes: [worker-0], for: 10 s", "events[0].for: 10 s is not shorter than peer_timeout"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: pause, nodes: [worker-0, worker], for: 0 s", "events[0].for: a pause lasts longer"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: pause, nodes: [all], for: 1 s", "events[0].nodes[0]: no node or group is called 'all'"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: kill, nodes: [worker-1], restart_after: 1 s", "'worker-1' is a worker, and a synchronous run cannot go on without it"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: kill, nodes: [worker-1]}\n  - {kind: pause, nodes: [worker], at: 2 s, for: 1 s", "s.yaml:11: events[1].nodes: 'worker-1' is dead at that time"),
    ("at_end: loop", "at_end: loop, repeat: 2", "events[1].repeat: a loop never ends: use `at_end: hold` or `stop`"),
    ("at_end: loop", "at_end: hold, repeat: 0", "events[1].repeat: 0 does not work"),
    ("at_end: loop", "at_end: loop, stretch: 0", "events[1].stretch: 0 does not work"),
    ("at_end: loop", "at_end: loop, stretch: 0.0001", "events[1].stretch: 3 points in 0.3 ms"),
    ("file: good.csv", "file: fast.csv", "events[1].file: 4 points in 2 ms: links cannot be changed that often; write a stretch of 2 or more"),
    ("file: good.csv", "file: fast.csv, stretch: 1.5", "events[1].stretch: 4 points in 3 ms"),
    ("at_end: loop", "at_end: loop, scale: 1e12", "events[1].scale: 1e+12 times the trace's highest rate"),
    ("at_end: loop", "at_end: loop, column: wlan", "s.yaml:11: events[1].file: good.csv"),
    ("links:\n", "racks: {a: {members: [worker]}}\nlinks:\n", "s.yaml:5: racks.a.up: a up has no rate"[:20]),
    ("links:\n", "racks: {a: {members: [worker], up: {at: nic}}}\nlinks:\n", "a rack's link is between two switches"),
    ("links:\n", "racks: {a: {members: []}}\nlinks:\n", "s.yaml:5: racks.a.members: "),
    ("links:\n", "racks: {a: {members: [wroker]}}\nlinks:\n", "racks.a.members[0]: no node or group is called 'wroker': did you"),
    ("links:\n", "racks: {a: {members: [worker, worker-1]}}\nlinks:\n", "'worker-1' is in this rack twice: a node is"),
    ("links:\n", "racks: {a: {members: [worker]}, b: {members: [worker-1]}}\nlinks:\n", "'worker-1' is in rack 'a' too"),
    ("links:\n", "racks: {worker: {members: [worker]}}\nlinks:\n", "s.yaml:5: racks.worker: two things are called 'worker'"),
    ("links:\n", "racks: {all: {members: [worker]}}\nlinks:\n", "s.yaml:5: racks.all: 'all' means something else"),
    ("links:\n", "racks: {a: {members: [worker]}}\nlinks:\n  a: {}\n", "links.a: 'a' is a rack: write this under `racks.a`"),
    ("role: server}", "role: server}\n  n: {role: host, device: cuda}", "nodes.n.device: a host computes nothing"),
    ("kind: step,", "kind: ramp, over: 0 s,", "a ramp takes longer than 0; for a jump use `kind: step`"),
    ("kind: step,", "kind: ramp, over: 1 s, every: 0 s,", "links cannot be changed that often"),
    ("kind: step,", "kind: ramp, over: 9 h, every: 1 ms,", "more than 100000 changes"),
    ("kind: step, links: [all], at: 1 s, rate: 5 Mbit/s", "kind: outage, links: [all], for: 0 s", "for: an"),
    ("steps: 5", "steps: null", "s.yaml:12: train.stop: no end: give steps, epochs or accuracy"),
    ("stop:", "task: digist, stop:", "s.yaml:12: train.task: unknown task 'digist'. Did you mean 'digits'"),
    ("stop:", "model: cnm, stop:", "s.yaml:12: train.model: unknown model 'cnm'. Did you mean 'cnn'"),
    ("[none]", "[non]", "s.yaml:13: algorithms[0]: unknown algorithm 'non'"),
    ("{steps: 5}}\nalgorithms: [none]", "{steps: 5}, optimizer: {momentum: 0.9}}\nalgorithms: [dgc-0.1]", "would count it twice"),
    ("[none]", "[3]", "s.yaml:13: algorithms[0]: 3 is not an algorithm: write a name, or {name"),
    ("[none]", "[]", "s.yaml:13: algorithms: no algorithm"),
    ("[none]", "[none, none]", "s.yaml:13: algorithms: 'none' is there twice"),
    ("[none]", "[{name: a, form: none}]", "algorithms[0].form: unknown key 'form': did you mean 'from'?"),
    ("[none]", "[{name: a, from: non}]", "s.yaml:13: algorithms[0]: unknown algorithm 'non'"),
    ("peer_", "seeds: [1, 1]\npeer_", "s.yaml:14: seeds: seed 1 is there twice"),
    ("peer_", "seeds: []\npeer_", "s.yaml:14: seeds: no seed"),
    ("peer_", "dilation: .nan\npeer_", "s.yaml:14: dilation: nan does not work"),
    ("peer_", f"{FLOW}kind: tcp, rate: 1 Mbit/s}}]\npeer_", "s.yaml:14: traffic[0].rate: tcp sends as much as it can"),
    ("peer_", f"{FLOW}kind: udp}}]\npeer_", "s.yaml:14: traffic[0].rate: udp needs a rate"),
    ("peer_", f"{FLOW}kind: udp, rate: 1 Mbit/s, congestion: bbr}}]\npeer_", "udp has no congestion control"),
    ("peer_", f"{FLOW}kind: udp, rate: 1 Mbit/s, streams: 2}}]\npeer_", "udp is one stream"),
    ("peer_", f"{FLOW}kind: tcp, on: 1 s}}]\npeer_", "traffic[0].off: `on` and `off` belong together"),
    ("peer_", f"{FLOW}kind: tcp, on: 1 ms, off: 1 s}}]\npeer_", "traffic[0].on: 1 ms is too short"),
    ("peer_", f"{FLOW}kind: tcp, timing: constant}}]\npeer_", "traffic[0].timing: there is nothing to time"),
    ("peer_", f"{FLOW}kind: tcp, for: 0 s}}]\npeer_", "traffic[0].for: a flow lasts longer than 0"),
    ("peer_", f"{FLOW}kind: tcp}}, {{name: f, from: server, to: worker-1, kind: tcp}}]\npeer_", "two flows are called 'f'"),
    ("peer_", "traffic: [{name: f, from: worker, to: worker, kind: tcp}]\npeer_", "'worker' would send to itself"),
    ("peer_", "traffic: [{name: f, from: worker, to: server, kind: tcp}]\npeer_", "traffic[0].from: 'worker' is a group of nodes: name one of them, such as worker-0"),
    ("peer_", "traffic: [{name: f, from: srver, to: worker-0, kind: tcp}]\npeer_", "traffic[0].from: no node or group is called 'srver'"),
    ("timeout: 10 s", "timeout: 10", "s.yaml:14: peer_timeout: duration 10 has no unit"),
    ("peer_timeout: 10 s", "peer_timeout: 1000 h\ndilation: 10", "s.yaml:14: peer_timeout: 3600000 s times dilation is more than 1000000 s, which no kernel waits: write at most 100000 s"),
    ("timeout: 10 s", "timeout: 1 s", "not longer than the longest outage, 1 s of server up"),
    ("peer_timeout: 10 s", "name: y", "s.yaml:14: key 'name' is there twice. First in line 1"),
    ("  server:", "\tserver:", "s.yaml:3: not YAML: found character '\\t' that cannot start any token"),
    ("name: x", "name: x: y", "s.yaml:1: not YAML: mapping values are not allowed here. Text with ': '"),
    ("name: x", "name: [x", "not YAML"),
    ("name: x", "name: *x", "s.yaml:1: not YAML: found undefined alias 'x'. A text that begins with '*'"),
    ("name: x", "name: !!python/object:os.system x", "s.yaml:1: 'x' has the tag"),
    ("name: x", "<<: {}\nname: x", "s.yaml:1: merge keys (<<) are not read. Links inherit"),
    ("name: x", "1: x", "s.yaml:1: a key that is not a word"),
    ("name: x", "name: x\n---\na: 1", "not YAML: but found another document. One scenario a file"),
    ("name: x", "name: \x07", "s.yaml:1: a control character is not allowed here"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), REPLACED)
def test_what_is_wrong_is_said_where_it_is(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert said in complaint(tmp_path, GOOD.replace(old, new, 1))


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
WHOLE = [
    ("", "s.yaml: the file is empty. `testbed init` writes"),
    ("# nothing\n", "s.yaml: the file is empty"),
    ("just text\n", "s.yaml:1: a scenario is keys with values"),
    ("- a\n", "s.yaml:1: a scenario is keys with values"),
    (b"\x7fELF\0\0", "s.yaml:1: this is a binary file. A scenario is YAML text"),
    (b"name: x\n\xff\xfe\n", "s.yaml:2: this is not UTF-8 text"),
    (b"# " + b"x" * MAX_BYTES, "s.yaml: larger than 1 MiB"),
    (BOMB, "aliases expand to more than 1000 values. Write them out"),
    ("a: &a [*a, *a]\n", "s.yaml:1: nested more than 24 levels deep"),
    ("a:\n  " + "[\n  " * 600, "s.yaml:26: nested more than 24 levels deep"),
    ("a:\n  " + "[\n  " * 30 + "]" * 30, "s.yaml:26: nested more than 24 levels deep"),
    (
        "a: " + "[" * 40 + "}",
        "s.yaml:1: nested more than 24 levels deep",
    ),  # at once, whatever comes
    ("a: " + "{a: " * 40 + "1" + "}" * 40, "s.yaml:1: nested more than 24 levels deep"),
]


@pytest.mark.parametrize(("text", "said"), WHOLE)
def test_files_that_are_no_scenario_at_all(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert said in complaint(tmp_path, text)


def test_missing_files_and_directories(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: no such file\. `testbed init`"):
        load(tmp_path / "none.yaml")
    (tmp_path / "other.yaml").write_text(GOOD)
    with pytest.raises(InputError, match=r"no such file\. There are .*other\.yaml"):
        load(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="this is a directory"):
        load(tmp_path)


def test_all_mistakes_are_reported_at_once_in_order_of_lines(tmp_path: Path) -> None:
    broken = GOOD.replace("role: server}", "role: boss}").replace("10 Mbit/s", "10")
    lines = complaint(tmp_path, broken.replace("at: 1 s", "at: 1").replace("steps: 5", "steps: 0"))
    assert [line.split(": ")[0] for line in lines.splitlines()] == [
        f"s.yaml:{number}" for number in (3, 7, 8, 10, 12)
    ]


def test_a_mistake_in_a_big_group_is_reported_once(tmp_path: Path) -> None:
    broken = GOOD.replace("count: 2", "count: 5000").replace("queue: 50 ms", "queue: 1 packet", 1)
    assert complaint(tmp_path, broken).count("fewer than two packets") == 2  # server and worker


def test_garbage_in_a_trace_is_told_by_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("time_s,rate_mbit_s\n0,1\n1,1\n2,1\n3,1\n4,1\nx,?\n")
    said = complaint(tmp_path, GOOD.replace("good.csv", "bad.csv"))
    assert "s.yaml:11: events[1].file: bad.csv:7: " in said
    assert "is not a number" in said


@pytest.mark.parametrize("count", [1004, 2014])
def test_a_stretch_that_is_advised_is_accepted(tmp_path: Path, count: int) -> None:
    points = "".join(f"{i / count:.9f},{5 + i % 2}\n" for i in range(count))
    (tmp_path / "many.csv").write_text(f"# duration_s: 1\ntime_s,rate_mbit_s\n{points}")
    text = GOOD.replace("good.csv", "many.csv")
    advised = re.search(r"write a stretch of (\S+) or more", complaint(tmp_path, text))
    assert advised is not None
    (tmp_path / "s.yaml").write_text(text.replace("many.csv", f"many.csv, stretch: {advised[1]}"))
    assert load(tmp_path / "s.yaml").scenario.name == "x"


def test_a_link_that_never_comes_back_is_refused(tmp_path: Path) -> None:
    said = complaint(tmp_path, GOOD.replace("rate: 5 Mbit/s", "rate: 0 bit/s"))
    assert "worker-0 up is at rate 0 for good" in said
    (tmp_path / "dead.csv").write_text("time_s,rate_mbit_s\n0,0\n")
    assert "server up is at rate 0 for good" in complaint(
        tmp_path, GOOD.replace("good.csv", "dead.csv")
    )


def test_dilation_leaves_every_link_a_rate(tmp_path: Path) -> None:
    slow = GOOD.replace("rate: 5 Mbit/s", "rate: 5 bit/s") + "dilation: 10\n"
    said = complaint(tmp_path, slow)
    assert "s.yaml:15: dilation: the lowest rate, 5 bit/s, would fall below 1 bit/s" in said


def test_ten_thousand_nodes_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(GOOD.replace("count: 2", "count: 9999"))
    (tmp_path / "good.csv").write_text(GOOD_TRACE)
    timeline = load(tmp_path / "s.yaml").timeline()
    assert len(timeline.ends) == 20_000
