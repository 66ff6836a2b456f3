# SPDX-License-Identifier: Apache-2.0
"""What the Python benchmarks share: a server of their own, `mfl` calls, memory of a process, medians, tables."""

import csv
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("MFL_BUILD", HERE.parent / "build"))


def program(path):
    found = BUILD / path
    if not found.exists():
        raise SystemExit(f"{found} is not there: build first (./dev build), or say where with MFL_BUILD")
    return str(found)


def raise_files():
    """As many open files as this user may have; what is started from here inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def memory(pid):
    """Resident memory in bytes: now, and at its highest. ProcessLookupError when it has ended, waited for or not."""
    found = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in ("VmRSS", "VmHWM"):
            found[key] = int(value.split()[0]) * 1024
    if len(found) < 2:
        raise ProcessLookupError(f"process {pid} has ended, and with it its memory")
    return found["VmRSS"], found["VmHWM"]


def shared_memory(pid):
    """Resident memory in bytes, with pages that several processes have counted in equal parts. OSError when it has ended."""
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} has ended, and with it its memory")


def processor_seconds(pid):
    """Of all its threads since it began."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def reset_peak(pid):
    """Makes the highest memory so far the present one."""
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")


class Server:
    """An mfl-server in a folder of its own, which goes with it."""

    def __init__(self, *options, config=None):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="mfl-bench-"))
        ready, write = os.pipe()
        command = [program("server/mfl-server"), "--listen", "127.0.0.1:0", "--state-dir", str(self.folder / "state")]
        if config:
            (self.folder / "server.yaml").write_text(config)
            command += ["--config", str(self.folder / "server.yaml")]
        command += ["--ready-fd", str(write), "--exit-with-stdin", "--log-level", "warn", *options]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[write])
        self.pid = self.process.pid
        os.close(write)
        with os.fdopen(ready) as pipe:
            self.address = pipe.readline().strip()
        if not self.address:
            raise SystemExit("the server did not start")
        self.children = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for child in self.children:
            child.terminate()
        for child in self.children:
            child.wait()
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def mfl(self, *arguments):
        """Runs mfl --json and returns its last line of JSON."""
        command = [program("cli/mfl"), *arguments, "--json", "--server", self.address]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if run.returncode:
            raise SystemExit(f"{' '.join(command)}: exit status {run.returncode}")
        return json.loads(run.stdout.strip().splitlines()[-1])

    def submit(self, text):
        path = self.folder / "job.yaml"
        path.write_text(text)
        return self.mfl("submit", str(path))["job"]

    def rounds(self, job):
        return self.mfl("show", job)["rounds"]

    def swarm(self, daemons, *options):
        """Daemons that do not train; returns when all are connected."""
        command = [program("bench/bench_swarm"), "--server", self.address, "--daemons", str(daemons), *options]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.children.append(child)
        line = child.stdout.readline().strip()
        if not line.startswith("connected"):
            raise SystemExit(f"the swarm did not connect: {line}")
        return child, line


class Daemons:
    """Daemons of one host with a data set and shared memory of their own: `kind` is how they add their updates (shm), or that they
    don't (solo). When they have ended, nothing may be left of them there."""

    def __init__(self, address, count, kind, data, backend="cpu", more=()):
        self.share = tempfile.mkdtemp(prefix="bench-of-mfl-", dir="/dev/shm")
        command = [program("client/mfl-client"), "--server", address, "--workers", "1", "--node", "one", "--backend", backend,
                   "--collective", kind, "--share-dir", self.share, "--data", data, "--exit-with-stdin", "--log-level", "warn", *more]
        self.processes = [subprocess.Popen([*command, "--name", f"d{i}"], stdin=subprocess.PIPE) for i in range(count)]
        self.pids = [p.pid for p in self.processes]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes:
            p.stdin.close()
        for p in self.processes:
            p.wait(30)
        left = os.listdir(self.share)
        shutil.rmtree(self.share)
        if left:
            raise SystemExit(f"left in shared memory: {left}")


def noop_job(name, rounds, clients, model="logistic", strategy="fedavg", partition="iid", aggregation=None):
    """For the swarm, whose clients all have weight 1 whatever samples it tells of. The model logistic has classes * (features + 1) parameters, as the swarm's data are. With the
    partition `local` each daemon is one client, and the job waits until all are there. Else as many daemons as clients
    have one each: by speed, clients that cost nothing would soon be with the few daemons that are answered first."""
    selection = f"daemons: {{min: {clients}}}" if partition == "local" else "assign: modulo"
    return f"""name: {name}
rounds: {rounds}
model: {model}
data: {{name: noop, partition: {partition}{"" if partition == "local" else f", clients: {clients}"}}}
training: {{lr: 0.1}}
aggregation: {{{aggregation or f"strategy: {strategy}, weighting: uniform"}}}
evaluation: {{every: 0}}
selection: {{{selection}}}
"""


def available():
    """Bytes of memory that a program may still take."""
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


median = statistics.median


def table(head, rows):
    """Aligned columns, the first one to the left."""
    lines = [head] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip(), flush=True)


def wait_until(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def kept_run(build, folder, job, daemons=1, may_fail=()):
    """The rounds of a job that `mfl run` trains in the folder, as dictionaries; a job that is done there is not run again, so an
    interrupted benchmark goes on. may_fail: what the message of a job may say that fails and is as good as done; such a job
    may have no rounds."""
    folder = pathlib.Path(folder)
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run left
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text(json.dumps(job))  # which YAML includes
        build = pathlib.Path(build).resolve()
        env = dict(os.environ, MFL_MODULE_DIR=str(build / "kernels" / "cpu"), OMP_WAIT_POLICY="passive",
                   PATH=os.pathsep.join([str(build / "server"), str(build / "client"), os.environ["PATH"]]))
        done = subprocess.run([build / "cli" / "mfl", "run", folder / "job.yaml", "--daemons", str(daemons), "--threads", "1",
                               "--out", folder / "out"], env=env, capture_output=True, text=True)
        text = (done.stdout + done.stderr).strip()
        if done.returncode and not any(words in text for words in may_fail):
            raise SystemExit(f"{folder.name}: {text[-800:]}")
        shutil.rmtree(folder / "out" / "state", ignore_errors=True)
        (folder / "done").touch()
    table = folder / "out" / "rounds.csv"
    return list(csv.DictReader(table.open())) if table.exists() else []
