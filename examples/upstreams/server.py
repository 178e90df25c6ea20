"""A tiny payments API without idempotency of its own. Standard library only.

    python3 examples/upstreams/server.py 8080
    onceward serve --upstream http://127.0.0.1:8080

POST /payments makes a payment, GET /payments lists them. A retry would pay twice: the gateway in
front sees to it that it does not. Port 0 takes any free one; the first line printed is the URL.
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

payments = []
lock = threading.Lock()


class Payments(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open between requests

    def do_GET(self):
        if self.path != "/payments":
            return self.answer(404, {"error": "there is only /payments"})
        with lock:
            self.answer(200, {"payments": payments})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != "/payments":
            return self.answer(404, {"error": "there is only /payments"})
        try:
            amount = json.loads(body)["amount"]
        except (ValueError, TypeError, KeyError):
            return self.answer(422, {"error": "send JSON with an amount"})
        with lock:
            payment = {"id": len(payments) + 1, "amount": amount}
            payments.append(payment)
        self.answer(201, payment, {"Location": f"/payments/{payment['id']}"})

    def answer(self, status, value, headers=None):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass  # one line per request would drown what matters


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8080
    server = ThreadingHTTPServer(("127.0.0.1", port), Payments)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
