//! Messages as they may come, from tables: strict readers on both sides of the gateway.
//!
//! `vectors/requests.toml` and `vectors/answers.toml` are data; where they come from stands in
//! them. Whatever comes, what goes on is read by someone who forgives nothing, and nothing goes on
//! that a message only hides.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::strict::{Answers, Message, Upstream, ask};
use super::target::{Gateway, folder};

const REQUESTS: &str = include_str!("vectors/requests.toml");
const ANSWERS: &str = include_str!("vectors/answers.toml");

#[derive(Deserialize)]
struct Table<T> {
    case: Vec<T>,
}

fn cases<T: DeserializeOwned>(text: &str) -> Vec<T> {
    toml::from_str::<Table<T>>(text).unwrap().case
}

#[derive(Deserialize)]
struct RequestCase {
    name: String,
    section: String,
    send: String,
    status: u16,
    reaches: Vec<String>,
}

#[derive(Deserialize)]
struct AnswerCase {
    name: String,
    section: String,
    answer: String,
    closes: bool,
    #[serde(default)]
    late: bool,
    status: u16,
    body: String,
}

impl AnswerCase {
    /// Whether a client was answered as the case says; what is kept back comes whole.
    fn fits(&self, answers: &Answers, is_kept_back: bool) -> bool {
        let Some(last) = answers.all.back() else { return self.late && !is_kept_back };
        let is_body = self.status == 502 || last.body == self.body.as_bytes();
        last.status() == self.status && is_body
    }
}

fn gateway(name: &str, upstream: &Upstream) -> Gateway {
    Gateway::start(&folder(name), upstream.address, &["--store=memory:".into()])
}

/// Method and target.
fn asked_for(request: &Message) -> String {
    request.start.trim_end_matches(" HTTP/1.1").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d1_d4_what_goes_to_the_upstream_is_read_by_one_who_forgives_nothing() {
    let fine = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let upstream = Upstream::start(move |_| (fine.to_vec(), false)).await;
    let gateway = gateway("vectors_requests", &upstream);
    let (mut wrong, mut late) = (Vec::new(), Vec::new());
    for RequestCase { name, section, send, status, reaches } in cases(REQUESTS) {
        let answers = ask(gateway.listen, send.as_bytes(), 1).await;
        let said = answers.as_ref().map(Answers::status);
        let asked: Vec<_> = upstream.asked().iter().map(asked_for).collect();
        let mut faults = upstream.faults();
        if status == 400 {
            // A body that breaks off was on its way already, and is not whole.
            faults.retain(|fault| !fault.starts_with("it ends half-way"));
        }
        late.extend(asked.iter().filter(|asked| asked.contains("smuggled")).cloned());
        if said != Ok(status) || asked != reaches || !faults.is_empty() {
            wrong.push(format!("{name} ({section}): {answers:?}, asked {asked:?}, {faults:?}"));
        }
    }
    late.extend(upstream.asked().iter().map(asked_for));
    assert!(wrong.is_empty() && late.is_empty(), "{late:?}\n{}", wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_d2_d3_what_comes_from_the_upstream_is_passed_on_as_one_answer_or_not_at_all() {
    let scripted: Vec<AnswerCase> = cases(ANSWERS);
    let upstream = Upstream::start(move |request| {
        let number = request.start.split('/').nth(1).unwrap().trim_end_matches(" HTTP");
        let case = &scripted[number.parse::<usize>().unwrap()];
        (case.answer.clone().into_bytes(), case.closes)
    })
    .await;
    let gateway = gateway("vectors_answers", &upstream);
    let mut wrong = Vec::new();
    for (n, case) in cases::<AnswerCase>(ANSWERS).into_iter().enumerate() {
        let mut seen = Vec::new();
        for head in ["", "Authorization: a\r\nIdempotency-Key: k\r\n"] {
            let method = if head.is_empty() { "GET" } else { "POST" };
            let sent = format!("{method} /{n} HTTP/1.1\r\nHost: h\r\n{head}\r\n");
            for _ in 0..2 {
                let answers = ask(gateway.listen, sent.as_bytes(), 1).await;
                let is_right = match &answers {
                    Ok(answers) => case.fits(answers, !head.is_empty()),
                    Err(fault) => {
                        case.late && head.is_empty() && fault.starts_with("it ends half-way")
                    }
                };
                if !is_right {
                    seen.push(format!("{method}: {answers:?}"));
                }
            }
        }
        // Read twice, run once, replayed once; what failed runs again.
        let (ran, runs) = (upstream.asked().len(), if case.status < 400 { 3 } else { 4 });
        if !seen.is_empty() || ran != runs || !upstream.faults().is_empty() {
            let (name, section) = (&case.name, &case.section);
            wrong.push(format!("{name} ({section}), ran {ran}: {seen:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
