#!/usr/bin/env python3
"""A worker for Onceward's control API, with nothing but Python's standard library.

    ONCEWARD_TOKEN=... worker.py enqueue --tenant acme --queue mail --type demo --payload '{"say":"hi"}'
    ONCEWARD_TOKEN=... worker.py work --queue mail

A job is run under a lease. While it runs, a thread renews the lease before half of it has passed;
when a renewal says that the permit is lost, someone else has the job, and this worker must not
have another effect for it. Delivery is at least once: make what `run` does safe to repeat, or pass
the job's fence to whatever it calls.

What the demo's jobs do is told by their payload: {"say": text}, {"sleep_s": n}, {"fail": reason}.
Replace `run` with your own work.
"""

import argparse
import json
import os
import socket
import sys
import threading
import time
import urllib.error
import urllib.request


class Refused(Exception):
    """The server answered with a problem."""

    def __init__(self, status, problem):
        self.status = status
        self.code = problem.get("code", "")
        self.retry_after = None
        told = "; ".join(f"{e['pointer']} {e['message']}" for e in problem.get("errors", []))
        super().__init__(f"{status} {self.code}: {told or problem.get('detail', '')}")


class Poison(Exception):
    """A job that no further attempt can help."""


class Onceward:
    """The control API, as far as a worker needs it."""

    TRIES = 5

    def __init__(self, server, token):
        self.server = server.rstrip("/")
        self.token = token

    def post(self, path, body, timeout=30):
        """Posts JSON. What failed on the way, or is answered with 429 or 503, is tried again."""
        request = urllib.request.Request(
            self.server + path,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method="POST",
        )
        for attempt in range(1, self.TRIES + 1):
            try:
                with urllib.request.urlopen(request, timeout=timeout) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                try:
                    problem = json.load(error)
                except ValueError:
                    problem = {}
                if error.code not in (429, 503) or attempt == self.TRIES:
                    raise Refused(error.code, problem) from None
                time.sleep(float(error.headers.get("Retry-After", 1)))
            except (urllib.error.URLError, OSError):
                if attempt == self.TRIES:
                    raise
                time.sleep(0.2 * 2**attempt)

    def take(self, queue, most, lease_ms, owner, wait_ms):
        body = {
            "queue": queue, "max": most, "lease_ms": lease_ms, "owner": owner, "wait_ms": wait_ms,
        }
        return self.post("/v1/jobs/take", body, timeout=30 + wait_ms / 1000)["jobs"]


class Lease(threading.Thread):
    """Renews a permit until it is told to stop; `lost` is set when the permit is gone."""

    def __init__(self, api, permit, lease_ms):
        super().__init__(daemon=True)
        self.api, self.permit, self.lease_ms = api, permit, lease_ms
        self.lost = threading.Event()
        self.over = threading.Event()

    def run(self):
        # Before half of the lease has passed, so that one slow renewal costs nothing.
        while not self.over.wait(self.lease_ms / 1000 / 3):
            try:
                body = {"permit": self.permit, "lease_ms": self.lease_ms}
                self.api.post("/v1/permits/renew", body)
            except Refused as refused:
                if refused.code == "permit.lost":
                    self.lost.set()
                    return
            except OSError:
                pass  # Not known: the next renewal, or the completion, will tell.

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()


def run(job, lost):
    """The work itself. Looks at `lost` before each effect. Returns the outcome."""
    payload = job["payload"] if isinstance(job["payload"], dict) else {}
    if "fail" in payload:
        raise Poison(payload["fail"])
    if lost.wait(payload.get("sleep_s", 0)):
        return None
    if "say" in payload:
        print(payload["say"], flush=True)
    return {"ran": job["resource"], "attempt": job["attempt"]}


def finish(api, job, lease_ms):
    """Runs one job and tells how it ended."""
    permit = job["permit"]
    try:
        with Lease(api, permit, lease_ms) as lease:
            outcome = run(job, lease.lost)
        if lease.lost.is_set():
            print(f"{job['ref']}: lost, someone else has it", file=sys.stderr)
            return
        api.post("/v1/permits/complete", {"permit": permit, "outcome": outcome})
    except Poison as poison:
        fail = {"permit": permit, "error": str(poison), "retry": False}
        api.post("/v1/permits/fail", fail)
    except Refused as refused:
        # The permit was lost between the last renewal and the completion.
        if refused.code not in ("permit.lost", "guard.failed"):
            raise
        print(f"{job['ref']}: {refused}", file=sys.stderr)
    except Exception as error:  # Whatever the work raised: another attempt may do better.
        fail = {"permit": permit, "error": f"{type(error).__name__}: {error}", "retry": True}
        api.post("/v1/permits/fail", fail)


def work(api, args):
    owner = f"{socket.gethostname()}:{os.getpid()}"
    while True:
        wait_ms = 0 if args.until_empty else args.wait_ms
        # One at a time: a job that waits behind another would lose its lease.
        jobs = api.take(args.queue, 1, args.lease_ms, owner, wait_ms)
        for job in jobs:
            finish(api, job, args.lease_ms)
        if args.until_empty and not jobs:
            return


def enqueue(api, args):
    body = {
        "tenant": args.tenant, "queue": args.queue, "type": args.type,
        "payload": json.loads(args.payload),
    }
    if args.resource:
        body["resource"] = args.resource
    answer = api.post("/v1/jobs", body)
    print(f"{'made' if answer['made'] else 'there already'}: {answer['ref']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("ONCEWARD_SERVER", "http://127.0.0.1:7601")
    parser.add_argument("--server", default=default, help="the control API (default: %(default)s)")
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("enqueue", help="makes a job")
    making.add_argument("--tenant", required=True)
    making.add_argument("--queue", required=True)
    making.add_argument("--type", required=True)
    making.add_argument("--resource", help="what it is about (default: the payload's hash)")
    making.add_argument("--payload", required=True, help="JSON")
    making.set_defaults(do=enqueue)
    working = commands.add_parser("work", help="takes jobs and runs them")
    working.add_argument("--queue", required=True)
    working.add_argument("--lease-ms", type=int, default=30_000)
    working.add_argument("--wait-ms", type=int, default=20_000)
    working.add_argument("--until-empty", action="store_true", help="ends when nothing is due")
    working.set_defaults(do=work)
    args = parser.parse_args()
    token = os.environ.get("ONCEWARD_TOKEN")
    if not token:
        parser.error("set ONCEWARD_TOKEN to a token of the control API")
    try:
        args.do(Onceward(args.server, token), args)
    except KeyboardInterrupt:
        return 0
    except (Refused, OSError, ValueError) as error:
        print(f"worker.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
