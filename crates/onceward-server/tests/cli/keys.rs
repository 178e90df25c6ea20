//! `onceward keys`: list, show, resolve, erase.

use onceward_core::decide::Verdict;
use serde_json::Value;

use super::sample::{claim, command, engine, folder, make, ran, request, run, runtime, serve};

fn keys_of(page: &Value) -> Vec<(String, String)> {
    let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_string();
    page["items"].as_array().unwrap().iter().map(|i| (text(i, "id"), text(i, "state"))).collect()
}

#[test]
fn a_list_tells_states_by_the_stores_clock() {
    let folder = folder("list");
    make(&folder);
    let page = run(&folder, &["keys", "list", "--json"]).json();
    let found = keys_of(&page);
    let is = |id: &str| found.iter().find(|(of, _)| of == id).map(|(_, state)| state.as_str());
    for (id, state) in [
        ("done-1", "done"),
        ("a:b", "done"),
        ("binary", "done"),
        ("expired", "expired"),
        ("forgotten", "expired"),
        ("running", "running"),
        ("unknown", "unknown"),
        ("failed", "failed"),
        ("m1", "dead"),
        ("m2", "pending"),
    ] {
        assert_eq!(is(id), Some(state), "{id} in {found:?}");
    }
    assert_eq!(found.len(), 10);
    assert_eq!(page["next"], Value::Null);

    let filtered = |arguments: &[&str]| {
        let mut all = vec!["keys", "list", "--json"];
        all.extend(arguments);
        let found = keys_of(&run(&folder, &all).json());
        found.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(filtered(&["--state", "done"]), ["a%3Ab", "binary", "done-1"].map(plain));
    assert_eq!(filtered(&["--state", "expired"]), ["expired", "forgotten"]);
    assert_eq!(filtered(&["--tenant", "globex"]), ["m1", "m2"]);
    assert_eq!(filtered(&["--scope", "mail", "--state", "dead"]), ["m1"]);
    assert_eq!(filtered(&["--tenant", "nobody"]), [""; 0]);
}

fn plain(id: &str) -> String {
    id.replace("%3A", ":")
}

#[test]
fn pages_follow_one_another_also_when_filtered() {
    let folder = folder("pages");
    make(&folder);
    for state in [None, Some("done"), Some("expired")] {
        let mut whole = vec!["keys", "list", "--json"];
        whole.extend(state.iter().flat_map(|state| ["--state", state]));
        let all = keys_of(&run(&folder, &whole).json());
        let mut paged = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut arguments = whole.clone();
            arguments.extend(["--limit", "1"]);
            arguments.extend(after.iter().flat_map(|after| ["--after", after]));
            let page = run(&folder, &arguments).json();
            paged.extend(keys_of(&page));
            match page["next"].as_str() {
                Some(next) => after = Some(next.to_string()),
                None => break,
            }
        }
        assert_eq!(paged, all, "{state:?}");
    }
    let text = run(&folder, &["keys", "list", "--limit", "2"]).ok();
    assert!(text.contains("There are more: go on with --after '"), "{text}");
}

#[test]
fn a_table_is_for_people_and_can_not_steer_their_terminal() {
    let folder = folder("table");
    make(&folder);
    let text = run(&folder, &["keys", "list"]).ok();
    assert!(text.starts_with(" KEY"), "{text}");
    assert!(text.contains("acme:request:POST /v1/payments:a%3Ab"), "{text}");
    assert!(text.contains("needs a hand") && text.contains("leased until in 23 h"), "{text}");
    assert!(text.contains("worker-7\\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
    let coloured = run(&folder, &["keys", "list", "--color", "always"]).ok();
    assert!(coloured.contains('\u{1b}') && !coloured.contains("\u{1b}[2J"), "{coloured}");
}

#[test]
fn show_tells_every_field() {
    let folder = folder("show");
    make(&folder);
    let show = |id: &str| run(&folder, &["keys", "show", &request(id).to_string()]).ok();
    let text = show("done-1");
    for part in ["state", "done", "terms", "retain 24 h", r#"{"id":"pay_1"}"#, "expires", "in 23 h"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(show("binary").contains("3 bytes, not text: ff001b"));
    assert!(show("failed").contains("503 upstream"));
    assert!(show("running").contains(", held"));
    assert!(!show("running").contains('\u{1b}'));

    let json = run(&folder, &["keys", "show", &request("done-1").to_string(), "--json"]).json();
    assert_eq!(json["outcome"]["text"], r#"{"id":"pay_1"}"#);
    assert_eq!(json["terms"]["retain_ms"], 86_400_000);
    assert_eq!(json["owner"], "worker-7\u{1b}[2J");
    let job = run(&folder, &["keys", "show", "globex:job:mail:m2", "--json"]).json();
    assert_eq!(job["payload"]["body"]["text"], r#"{"mail":"m2"}"#);
    assert_eq!(job["guard"], "next 2 of globex:jobs.done:mail%3Aada");
}

#[test]
fn reading_works_while_a_server_holds_the_file() {
    let folder = folder("beside");
    make(&folder);
    runtime().block_on(async {
        let engine = engine(&folder);
        engine.claim(&claim("fresh")).await.unwrap();
        let json = run(&folder, &["keys", "show", &request("fresh").to_string(), "--json"]).json();
        assert_eq!(json["state"], "running");
        let listed = run(&folder, &["keys", "list", "--json"]).json();
        assert_eq!(listed["items"].as_array().unwrap().len(), 11);
        let refused = run(&folder, &["sweep"]);
        assert_eq!(refused.code, 1);
        let pid = std::process::id().to_string();
        assert!(refused.stderr.contains(&pid), "names the holder: {}", refused.stderr);
        engine.close().await.unwrap();
    });
}

#[test]
fn an_unknown_record_is_resolved_by_hand() {
    let folder = folder("resolve");
    make(&folder);
    let unknown = request("unknown").to_string();
    let outcome = folder.join("answer.json");
    std::fs::write(&outcome, r#"{"id":"pay_2"}"#).unwrap();
    let text =
        run(&folder, &["keys", "resolve", &unknown, "--as", "done", "--outcome", "@answer.json"])
            .ok();
    assert_eq!(text, format!("{unknown} is done.\n"));
    runtime().block_on(async {
        let engine = engine(&folder);
        match engine.claim(&claim("unknown")).await.unwrap() {
            Verdict::Replay(stored) => {
                assert_eq!(stored.outcome.as_deref(), Some(br#"{"id":"pay_2"}"#.as_slice()));
            }
            other => panic!("{other:?}"),
        }
        engine.close().await.unwrap();
    });
    // Done is final.
    let again = run(&folder, &["keys", "resolve", &unknown, "--as", "rerun", "--json"]);
    assert_eq!((again.code, again.error().0.as_str()), (1, "key.not_now"));
    // Who did it is in the audit.
    let audit = run(&folder, &["audit", "list", "--key", &unknown, "--json"]).json();
    let by_hand = audit["items"].as_array().unwrap().iter().find(|e| e["actor"] == "ada").unwrap();
    assert_eq!(by_hand["action"], "request.done");
}

#[test]
fn a_dead_job_whose_subject_went_on_runs_again_only_by_force() {
    let folder = folder("rerun");
    make(&folder);
    let resolve = |more: &[&str]| {
        let mut all = vec!["keys", "resolve", "globex:job:mail:m1", "--as", "rerun", "--json"];
        all.extend(more);
        run(&folder, &all)
    };
    let stale = resolve(&[]);
    assert_eq!((stale.code, stale.error().0.as_str()), (1, "key.stale"));
    assert!(stale.error().1.contains("--force"));
    assert_eq!(resolve(&["--force"]).json()["result"], "may run again");
    let job = run(&folder, &["keys", "show", "globex:job:mail:m1", "--json"]).json();
    assert_eq!(job["state"], "pending");
    let dead = run(
        &folder,
        &["keys", "resolve", "globex:job:mail:m1", "--as", "dead", "--reason", "no mailbox"],
    );
    assert_eq!(dead.ok(), "globex:job:mail:m1 is dead.\n");
    let job = run(&folder, &["keys", "show", "globex:job:mail:m1", "--json"]).json();
    assert_eq!((&job["state"], &job["error"]), (&"dead".into(), &"no mailbox".into()));
}

#[test]
fn erasing_needs_a_yes() {
    let folder = folder("erase");
    make(&folder);
    let key = request("done-1").to_string();
    let refused = run(&folder, &["keys", "erase", &key]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("--yes"), "{}", refused.stderr);
    run(&folder, &["keys", "show", &key]).ok();
    assert_eq!(run(&folder, &["keys", "erase", &key, "--yes"]).ok(), format!("{key} is erased.\n"));
    let gone = run(&folder, &["keys", "show", &key, "--json"]);
    assert_eq!((gone.code, gone.error().0.as_str()), (1, "key.absent"));
    // A live lease is its holder's.
    let running = run(&folder, &["keys", "erase", &request("running").to_string(), "--yes"]);
    assert_eq!(running.code, 1);
    assert!(running.stderr.contains("holds its lease"), "{}", running.stderr);
}

/// Outcomes are replayed and actors are on record: neither may depend on who holds the store.
#[test]
fn a_decision_is_the_same_through_a_server() {
    // None of this survives being read as numbers and members and written again.
    let outcome = r#"{"z":12345678901234567890123,"a":1.10,"z":1E2, "t":"\u00e9"}"#;
    for through_a_server in [false, true] {
        let folder = folder(&format!("same-{through_a_server}"));
        make(&folder);
        let server = through_a_server.then(|| serve(&folder));
        let unknown = request("unknown").to_string();
        let resolve = ["keys", "resolve", &unknown, "--as", "done", "--outcome", outcome];
        run(&folder, &[&resolve[..], &["--actor", "jürgen"]].concat()).ok();
        let dead = "globex:job:mail:m1";
        let mut without = command(&folder, &["keys", "resolve", dead, "--as", "done"]);
        ran(without.env("USER", "Łucja").output().unwrap()).ok();
        for (key, outcome, actor) in [(&*unknown, outcome, "jürgen"), (dead, "null", "Łucja")] {
            let shown = run(&folder, &["keys", "show", key, "--json"]).json();
            assert_eq!(shown["outcome"]["text"], outcome, "through a server: {through_a_server}");
            let audit = run(&folder, &["audit", "list", "--key", key, "--json"]).json();
            let last = audit["items"].as_array().unwrap().last().unwrap();
            assert_eq!(last["actor"], actor, "through a server: {through_a_server}");
        }
        drop(server);
    }
}

#[test]
fn an_actor_that_can_not_be_sent_is_refused_and_nothing_is_done() {
    let folder = folder("actor");
    make(&folder);
    let _server = serve(&folder);
    let unknown = request("unknown").to_string();
    let resolve = ["keys", "resolve", &unknown, "--as", "rerun", "--actor", "a\nb", "--json"];
    let refused = run(&folder, &resolve);
    assert_eq!((refused.code, refused.error().0.as_str()), (2, "actor"));
    assert_eq!(run(&folder, &["keys", "show", &unknown, "--json"]).json()["state"], "unknown");
}
