// A tiny payments API without idempotency of its own. Standard library only.
//
//     node examples/upstreams/server.js 8080
//     onceward serve --upstream http://127.0.0.1:8080
//
// POST /payments makes a payment, GET /payments lists them. A retry would pay twice: the gateway in
// front sees to it that it does not. Port 0 takes any free one; the first line printed is the URL.

'use strict';

const http = require('node:http');

const payments = [];

function answer(response, status, value, headers = {}) {
  const body = Buffer.from(JSON.stringify(value));
  response.writeHead(status, {
    'Content-Type': 'application/json',
    'Content-Length': body.length,
    ...headers,
  });
  response.end(body);
}

function pay(body, response) {
  let amount;
  try {
    ({ amount } = JSON.parse(body));
  } catch {
    // Not JSON: told below, as a missing amount is.
  }
  if (amount === undefined) {
    return answer(response, 422, { error: 'send JSON with an amount' });
  }
  const payment = { id: payments.length + 1, amount };
  payments.push(payment);
  return answer(response, 201, payment, { Location: `/payments/${payment.id}` });
}

const server = http.createServer((request, response) => {
  const pieces = [];
  request.on('data', (piece) => pieces.push(piece));
  request.on('end', () => {
    if (request.url !== '/payments') {
      return answer(response, 404, { error: 'there is only /payments' });
    }
    if (request.method === 'POST') {
      return pay(Buffer.concat(pieces), response);
    }
    return answer(response, 200, { payments });
  });
});

server.listen(Number(process.argv[2] ?? 8080), '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${server.address().port}`);
});
