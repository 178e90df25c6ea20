"""A payments API that records its answer in the transaction of its own row. Needs psycopg 3.

    pip install "psycopg[binary]"
    onceward migrate --store postgres://owner@127.0.0.1/shop
    python3 examples/upstreams/own_transaction.py 8080 postgres://app@127.0.0.1/shop
    onceward serve --config onceward.toml --store postgres://gateway@127.0.0.1/shop

with, in onceward.toml,

    [[route]]
    match = "POST /payments"
    upstream = "http://127.0.0.1:8080"
    complete = "upstream"

The gateway sends `Onceward-Permit`; `onceward.complete` takes it. Payment and answer commit
together, so a crash anywhere leaves both or neither, and a retry gets the one answer there is. The
login of the app is a member of the role `onceward_app` and owns its own tables; it sees none of
Onceward's.
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg

DATABASE = sys.argv[2]


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            amount = int(json.loads(body)["amount"])
        except (ValueError, TypeError, KeyError):
            # Nothing was done and nothing is recorded: the client may send a better body.
            return self.answer(422, {"error": "send JSON with an amount"})
        key = self.headers["Idempotency-Key"]
        with psycopg.connect(DATABASE) as connection:
            with connection.transaction():
                self.dies_at("before")
                row = connection.execute(
                    "INSERT INTO payments (key, amount) VALUES (%s, %s) RETURNING id", (key, amount)
                ).fetchone()
                self.dies_at("row")
                payment = {"id": row[0], "amount": amount}
                connection.execute(
                    "SELECT onceward.complete(%s, 201, %s::jsonb, %s::jsonb)",
                    (
                        self.headers["Onceward-Permit"],
                        json.dumps(payment),
                        json.dumps({"Location": f"/payments/{row[0]}"}),
                    ),
                )
                self.dies_at("completed")
            self.dies_at("committed")
        self.answer(201, payment)

    def dies_at(self, point):
        """For trying out crashes: the header X-Die names a point, and the process is gone there."""
        if self.headers.get("X-Die") == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


if __name__ == "__main__":
    with psycopg.connect(DATABASE, autocommit=True) as setup:
        setup.execute(
            "CREATE TABLE IF NOT EXISTS payments"
            " (id bigint GENERATED ALWAYS AS IDENTITY, key text, amount bigint)"
        )
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Payments)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
