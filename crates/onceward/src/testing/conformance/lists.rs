//! Lists: what is asked for and nothing else, in the order that was promised, a page at a time.
//!
//! Where a store's lists trail behind its commits, the harness lets them settle first.

use onceward_core::key::{Key, Kind, Subject};
use onceward_core::record::{Body, Draft, State, Time};

use super::bench::{
    Bench, Checked, Failure, SCOPE, TENANT, all_records, bytes, draft, ensure, ensure_eq, job, key,
    mark_at, put, subject, with_outcome, with_payload,
};
use crate::store::{Cursor, Items, List, StoreError};
use crate::testing::harness::Damage;
use onceward_core::batch::Write;

/// Inserts a draft of each key, in as few batches as possible.
async fn insert_all(bench: &Bench<'_>, drafts: Vec<Draft>) -> Checked {
    for chunk in drafts.chunks(20) {
        let writes = chunk.iter().cloned().map(put).collect();
        bench.apply(&bench.batch(vec![], writes)).await?;
    }
    Ok(())
}

/// Keys that differ in tenant, kind, scope, what narrows it, and id, and sort by bytes.
fn many_keys() -> Result<Vec<Key>, Failure> {
    let mut keys = Vec::new();
    for tenant in ["acme", "Acme", "ünique"] {
        for kind in Kind::ALL {
            for id in ["a", "B", "a0", "é", "z", "😀"] {
                keys.push(Key::new(kind, tenant, "scope", id)?);
            }
        }
        // What is narrowed stands between what is not, and its colons count in the order.
        for kind in [Kind::Request, Kind::Job] {
            for user in ["", "a", "a-", "a:", "é"] {
                keys.push(Key::within(kind, tenant, "scope", &[user], "1")?);
                keys.push(Key::within(kind, tenant, "scope", &[user, "x"], "1")?);
            }
        }
    }
    Ok(keys)
}

/// Records come in the order of tenant, kind and name, compared byte by byte.
pub async fn records_come_in_the_order_of_their_keys(bench: &Bench<'_>) -> Checked {
    let mut keys = many_keys()?;
    insert_all(bench, keys.iter().rev().map(draft).collect()).await?;
    keys.sort();
    ensure_eq!(bench.list_keys(&all_records(), 1_000).await?, keys, "in order");
    Ok(())
}

/// Pages of any size, one after the other, hold what one large page holds.
pub async fn pages_follow_one_another(bench: &Bench<'_>) -> Checked {
    let keys = many_keys()?;
    let mut drafts = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        let mut draft = draft(key);
        // Few different instants and priorities, so that pages end between equals.
        draft.record.priority = u8::from(n % 3 == 0);
        (draft.due, draft.sweep) = (Time::In(n as u64 % 2), Time::In(n as u64 % 2));
        drafts.push(draft);
    }
    insert_all(bench, drafts).await?;
    for n in 0..5 {
        bench.apply(&bench.batch(vec![], vec![mark_at(&subject(&format!("{n}"))?, 1)])).await?;
        let entry = super::bench::audit(&format!("action.{n}"));
        bench.apply(&bench.batch(vec![], vec![entry])).await?;
    }
    bench.pass(200).await?;
    let lists = [
        all_records(),
        List::Records { tenant: Some("acme".into()), scope: None, state: None },
        List::Due { queue: "scope".into() },
        List::Sweepable,
        List::Marks { tenant: Some(TENANT.into()), prefix: String::new() },
        List::Marks { tenant: None, prefix: String::new() },
        super::bench::all_audit(),
    ];
    for what in lists {
        let whole = flat(bench.walk(&what, 1_000).await?);
        ensure!(whole.len() >= 5, "{what:?} has {} items", whole.len());
        for limit in [1, 2, 3, 5, whole.len() - 1, whole.len(), whole.len() + 1] {
            let pages = flat(bench.walk(&what, limit).await?);
            ensure_eq!(pages, whole, "{what:?} in pages of {limit}");
        }
    }
    Ok(())
}

fn flat(pages: Vec<Items>) -> Vec<String> {
    let texts = |items: Items| -> Vec<String> {
        match items {
            Items::Records(items) => items.iter().map(|item| format!("{item:?}")).collect(),
            Items::Marks(items) => items.iter().map(|item| format!("{item:?}")).collect(),
            Items::Audit(items) => items.iter().map(|item| format!("{item:?}")).collect(),
            Items::Settled(items) => items.iter().map(|item| format!("{item:?}")).collect(),
        }
    };
    pages.into_iter().flat_map(texts).collect()
}

/// What was taken since the last page is gone from the list, and the rest follows: nothing comes
/// twice, nothing is left out.
pub async fn a_walk_goes_on_past_what_was_taken(bench: &Bench<'_>) -> Checked {
    let keys: Vec<_> = ["a", "b", "c", "d"].into_iter().map(job).collect::<Result<_, _>>()?;
    for what in [all_records(), List::Due { queue: SCOPE.into() }, List::Sweepable] {
        let timed = |key: &Key| Draft { due: Time::In(0), sweep: Time::In(0), ..draft(key) };
        insert_all(bench, keys.iter().map(timed).collect()).await?;
        bench.pass(200).await?;
        bench.walk(&what, 10).await?;
        let page = bench.store.list(what.clone(), None, 2).await?;
        ensure!(page.next.is_some(), "{what:?}: two of four must have a next page");
        let Items::Records(listed) = page.items else {
            return Err(Failure::new(format!("{what:?} must list records")));
        };
        // The very record that the page ended with, so that its place must be known without it.
        let taken = listed.last().map(|record| Write::Delete(record.key.clone()));
        bench.apply(&bench.batch(vec![], taken.into_iter().collect())).await?;
        // Settles the lists.
        bench.walk(&what, 10).await?;
        let rest = bench.store.list(what.clone(), page.next, 10).await?;
        let Items::Records(rest) = rest.items else {
            return Err(Failure::new(format!("{what:?} must list records")));
        };
        let mut walked: Vec<_> = listed.iter().chain(&rest).map(|r| r.key.clone()).collect();
        walked.sort();
        ensure_eq!(walked, keys, "{what:?}: each once");
    }
    Ok(())
}

/// A cursor that no page ended with is a bad request; it neither starts the list again nor ends it.
pub async fn an_unreadable_cursor_is_refused(bench: &Bench<'_>) -> Checked {
    bench.insert(&Draft { due: Time::In(0), sweep: Time::In(0), ..draft(&job("a")?) }).await?;
    let lists = [
        all_records(),
        List::Due { queue: SCOPE.into() },
        List::Sweepable,
        List::Marks { tenant: Some(TENANT.into()), prefix: String::new() },
        List::Marks { tenant: None, prefix: String::new() },
        super::bench::all_audit(),
    ];
    for what in lists {
        for cursor in ["?", "", "-1", "\u{0}", "9,x"] {
            let page = bench.store.list(what.clone(), Some(Cursor(cursor.into())), 10).await;
            ensure!(
                matches!(page, Err(StoreError::Invalid(_))),
                "{what:?} after {cursor:?} must be Invalid, but got {page:?}"
            );
        }
    }
    Ok(())
}

/// A page that holds the rest says that there is no next one.
pub async fn the_last_page_has_no_next(bench: &Bench<'_>) -> Checked {
    let keys: Vec<_> = ["a", "b", "c"].into_iter().map(job).collect::<Result<_, _>>()?;
    let timed = |key: &Key| Draft { due: Time::In(0), sweep: Time::In(0), ..draft(key) };
    insert_all(bench, keys.iter().map(timed).collect()).await?;
    let write = |id: &str| Ok::<_, Failure>(mark_at(&subject(id)?, 1));
    let marks = vec![write("a")?, write("b")?, write("c")?];
    bench.apply(&bench.batch(vec![], marks)).await?;
    let audit = ["a", "b", "c"].map(super::bench::audit).to_vec();
    bench.apply(&bench.batch(vec![], audit)).await?;
    bench.pass(200).await?;
    let lists = [
        all_records(),
        List::Due { queue: SCOPE.into() },
        List::Sweepable,
        List::Marks { tenant: Some(TENANT.into()), prefix: "doc:".into() },
        List::Marks { tenant: None, prefix: "doc:".into() },
        super::bench::all_audit(),
    ];
    for what in lists {
        bench.walk(&what, 3).await?;
        let full = bench.store.list(what.clone(), None, 3).await?;
        ensure_eq!(full.next, None, "{what:?}: three of three");
        let part = bench.store.list(what.clone(), None, 2).await?;
        ensure!(part.next.is_some(), "{what:?}: two of three must have a next page");
        let rest = bench.store.list(what.clone(), part.next, 2).await?;
        ensure_eq!(rest.next, None, "{what:?}: the third of three");
        ensure_eq!(flat(vec![rest.items]).len(), 1, "{what:?}: the third of three");
    }
    Ok(())
}

/// Each filter alone and all together; columns are given escaped.
pub async fn records_are_filtered_by_tenant_scope_and_state(bench: &Bench<'_>) -> Checked {
    let mut drafts = Vec::new();
    for tenant in ["acme", "ac:me", "acme%"] {
        for scope in ["mail", "mail:er", "ma_l"] {
            for (n, state) in [State::Running, State::Done, State::Dead].into_iter().enumerate() {
                let mut draft = draft(&Key::new(Kind::Job, tenant, scope, &format!("{n}"))?);
                draft.record.state = state;
                drafts.push(draft);
                let key = Key::within(Kind::Request, tenant, scope, &["bob"], &format!("{n}"))?;
                let mut narrowed = self::draft(&key);
                narrowed.record.state = state;
                drafts.push(narrowed);
            }
        }
    }
    let keys: Vec<_> = drafts.iter().map(|draft| draft.record.clone()).collect();
    insert_all(bench, drafts).await?;
    for tenant in [None, Some("acme"), Some("ac%3Ame"), Some("acme%25"), Some("ac:me")] {
        for scope in [None, Some("mail"), Some("mail%3Aer"), Some("ma_l")] {
            for state in [None, Some(State::Done), Some(State::Failed)] {
                let fits = keys.iter().filter(|record| {
                    tenant.is_none_or(|tenant| record.key.tenant_column() == tenant)
                        && scope.is_none_or(|scope| record.key.scope_column() == scope)
                        && state.is_none_or(|state| record.state == state)
                });
                let mut must_be: Vec<_> = fits.map(|record| record.key.clone()).collect();
                must_be.sort();
                let tenant = tenant.map(str::to_string);
                let what = List::Records { tenant, scope: scope.map(str::to_string), state };
                ensure_eq!(bench.list_keys(&what, 4).await?, must_be, "{what:?}");
            }
        }
    }
    Ok(())
}

/// A listed record is the record that a load gives; its state is shown as written.
pub async fn listed_records_are_whole(bench: &Bench<'_>) -> Checked {
    let mut done = with_payload(with_outcome(draft(&key("a")?), &bytes("o")), &bytes("p"));
    done.record.state = State::Done;
    (done.due, done.expires, done.sweep) = (Time::Clear, Time::In(10), Time::In(20));
    done.record.error = Some("once".into());
    let there = bench.insert(&done).await?;
    bench.pass(200).await?;
    let what = List::Records { tenant: None, scope: None, state: Some(State::Done) };
    let must_be = std::slice::from_ref(&there);
    ensure_eq!(bench.list_records(&what, 10).await?, must_be, "done, past its retention");
    ensure_eq!(bench.list_records(&List::Sweepable, 10).await?, must_be, "due for the sweep");
    Ok(())
}

fn due() -> List {
    List::Due { queue: SCOPE.into() }
}

/// Higher priority first, then the one that is due longest.
pub async fn due_jobs_come_by_priority_then_longest_due(bench: &Bench<'_>) -> Checked {
    let jobs = [("low-new", 0, 30), ("low-old", 0, 10), ("high-new", 9, 20), ("high-old", 9, 0)];
    for (id, priority, due) in jobs {
        let mut pending = draft(&job(id)?);
        pending.record.state = State::Pending;
        pending.record.priority = priority;
        pending.due = Time::In(due * 100);
        bench.insert(&pending).await?;
    }
    bench.pass(4_000).await?;
    for limit in [1, 3, 10] {
        let keys = bench.list_keys(&due(), limit).await?;
        let ids: Vec<_> = keys.iter().map(Key::id).collect();
        ensure_eq!(ids, ["high-old", "high-new", "low-old", "low-new"], "pages of {limit}");
    }
    Ok(())
}

/// Pending, failed and lapsed running jobs of this queue, of every tenant; nothing else.
pub async fn due_holds_what_may_be_taken_and_nothing_else(bench: &Bench<'_>) -> Checked {
    for state in State::ALL {
        let mut draft = draft(&job(state.as_str())?);
        (draft.record.state, draft.due) = (state, Time::In(0));
        bench.insert(&draft).await?;
    }
    let others = [
        Key::new(Kind::Job, TENANT, "other", "a")?,
        Key::new(Kind::Job, TENANT, "mail:er", "a")?,
        Key::within(Kind::Job, TENANT, "mai", &["l"], "a")?,
        Key::new(Kind::Request, TENANT, SCOPE, "a")?,
        Key::new(Kind::Event, TENANT, SCOPE, "a")?,
        Key::new(Kind::Append, TENANT, SCOPE, "a")?,
        job("undated")?,
        Key::new(Kind::Job, "beta", SCOPE, "a")?,
        Key::within(Kind::Job, TENANT, SCOPE, &["type"], "a")?,
    ];
    for key in &others {
        let mut pending = draft(key);
        pending.record.state = State::Pending;
        pending.due = if key.id() == "undated" { Time::Clear } else { Time::In(0) };
        bench.insert(&pending).await?;
    }
    bench.pass(200).await?;
    let mut keys = bench.list_keys(&due(), 3).await?;
    keys.sort();
    let mut must_be = vec![
        job("failed")?,
        job("pending")?,
        job("running")?,
        others[7].clone(),
        others[8].clone(),
    ];
    must_be.sort();
    ensure_eq!(keys, must_be, "what may be taken");
    let escaped = List::Due { queue: "mail%3Aer".into() };
    ensure_eq!(bench.list_keys(&escaped, 3).await?, [others[1].clone()], "an escaped queue");
    Ok(())
}

/// A job is due from its instant on, and a running one from its lease's end on.
pub async fn due_is_judged_by_the_clock(bench: &Bench<'_>) -> Checked {
    let mut pending = draft(&job("pending")?);
    (pending.record.state, pending.due) = (State::Pending, Time::In(1_000));
    let at = bench.insert(&pending).await?.updated_at;
    bench.insert(&Draft { due: Time::In(1_000), ..draft(&job("running")?) }).await?;
    ensure_eq!(bench.list_keys(&due(), 10).await?, [], "before");
    if bench.can.clock && bench.advance(999).await? {
        let now = bench.now().await?;
        ensure_eq!(now, at.plus(999), "a clock that was moved");
        ensure_eq!(bench.list_keys(&due(), 10).await?, [], "a millisecond before");
        bench.advance(1).await?;
    } else {
        bench.pass(1_200).await?;
    }
    let keys = bench.list_keys(&due(), 10).await?;
    ensure_eq!(keys.len(), 2, "from the instant on: {keys:?}");
    let renewed = Draft { due: Time::In(60_000), ..draft(&job("running")?) };
    bench.insert(&renewed).await?;
    ensure_eq!(bench.list_keys(&due(), 10).await?, [job("pending")?], "after a renewal");
    Ok(())
}

/// Damaged records are passed over where jobs are taken and records swept: what lies behind them is
/// found, however small the pages are.
pub async fn i18_damaged_records_stop_neither_queue_nor_sweep(bench: &Bench<'_>) -> Checked {
    for n in 0..7_u64 {
        let mut pending = draft(&job(&n.to_string())?);
        pending.record.state = State::Pending;
        (pending.due, pending.sweep) = (Time::In(n), Time::In(n));
        bench.insert(&pending).await?;
    }
    for n in [0, 1, 2, 5] {
        if !bench.damage(Damage::Record(job(&n.to_string())?)).await? {
            return Ok(());
        }
    }
    bench.pass(200).await?;
    for limit in [1, 2, 3, 10] {
        for what in [due(), List::Sweepable] {
            let keys = bench.list_keys(&what, limit).await?;
            let ids: Vec<_> = keys.iter().map(Key::id).collect();
            ensure_eq!(ids, ["3", "4", "6"], "{what:?}, pages of {limit}");
        }
    }
    Ok(())
}

/// Longest due first, whatever the key.
pub async fn sweepable_comes_longest_due_first(bench: &Bench<'_>) -> Checked {
    for (id, sweep) in [("b", 20), ("c", 0), ("a", 10), ("d", 30)] {
        let sweep = Time::In(sweep * 100);
        bench.insert(&Draft { sweep, ..draft(&key(id)?) }).await?;
    }
    bench.pass(4_000).await?;
    for limit in [1, 3, 10] {
        let keys = bench.list_keys(&List::Sweepable, limit).await?;
        let ids: Vec<_> = keys.iter().map(Key::id).collect();
        ensure_eq!(ids, ["c", "a", "b", "d"], "pages of {limit}");
    }
    Ok(())
}

/// Records of any kind and state whose sweep is due; nothing that is not, or was deleted.
pub async fn sweepable_holds_what_is_due_and_nothing_else(bench: &Bench<'_>) -> Checked {
    let mut must_be = Vec::new();
    for kind in Kind::ALL {
        for state in State::ALL {
            let key = Key::new(kind, TENANT, SCOPE, state.as_str())?;
            let mut draft = Draft { sweep: Time::In(0), ..draft(&key) };
            draft.record.state = state;
            bench.insert(&draft).await?;
            must_be.push(key);
        }
    }
    bench.insert(&Draft { sweep: Time::In(60_000), ..draft(&key("later")?) }).await?;
    bench.insert(&draft(&key("never")?)).await?;
    bench.insert(&Draft { sweep: Time::In(0), ..draft(&key("deleted")?) }).await?;
    bench.apply(&bench.batch(vec![], vec![Write::Delete(key("deleted")?)])).await?;
    let cleared = bench.insert(&Draft { sweep: Time::In(0), ..draft(&key("cleared")?) }).await?;
    let clear = Draft { sweep: Time::Clear, ..super::bench::draft_of(&cleared) };
    bench.insert(&clear).await?;
    bench.pass(200).await?;
    let mut keys = bench.list_keys(&List::Sweepable, 5).await?;
    keys.sort();
    must_be.sort();
    ensure_eq!(keys, must_be, "what is due");
    Ok(())
}

/// Marks of one tenant in the order of their names, with positions and values.
pub async fn marks_come_in_the_order_of_their_names(bench: &Bench<'_>) -> Checked {
    let mut must_be = Vec::new();
    for (n, id) in ["b", "a", "😀", "B", "é", "a0"].into_iter().enumerate() {
        let subject = subject(id)?;
        let value = if n % 2 == 0 { Body::Set(bytes(id)) } else { Body::Keep };
        let position = n as u64 + 1;
        let write = Write::Mark { subject: subject.clone(), position, value };
        bench.apply(&bench.batch(vec![], vec![write])).await?;
        let Some(mark) = bench.mark(&subject).await? else {
            return Err(Failure::new("a written mark must be there"));
        };
        must_be.push((subject, mark));
        let other = Subject::new("beta", "doc", id)?;
        bench.apply(&bench.batch(vec![], vec![mark_at(&other, 1)])).await?;
    }
    must_be.sort_by(|a, b| a.0.cmp(&b.0));
    let what = List::Marks { tenant: Some(TENANT.into()), prefix: "doc:".into() };
    for limit in [1, 4, 100] {
        ensure_eq!(bench.list_marks(&what, limit).await?, must_be, "pages of {limit}");
    }
    Ok(())
}

/// Without a tenant, everyone's: in the order of tenant and name, also of those who have nothing
/// but marks. A page may end between two tenants or within one.
pub async fn marks_of_all_tenants_come_in_the_order_of_tenant_and_name(
    bench: &Bench<'_>,
) -> Checked {
    let mut all = Vec::new();
    for tenant in ["beta", TENANT, "b", "B", "a%b", "tenant: é", "😀"] {
        for (space, id) in [("doc", "b"), ("Doc", "a"), ("doc", "a"), ("docs", "a"), ("d_c", "a")] {
            let subject = Subject::new(tenant, space, id)?;
            bench.apply(&bench.batch(vec![], vec![mark_at(&subject, 1)])).await?;
            all.push(subject);
        }
    }
    all.sort();
    for prefix in ["", "doc", "doc:", "doc:a", "d_", "x"] {
        let must_be: Vec<_> =
            all.iter().filter(|subject| subject.name_column().starts_with(prefix)).collect();
        let what = List::Marks { tenant: None, prefix: prefix.into() };
        for limit in [1, 3, 5, 100] {
            let marks = bench.list_marks(&what, limit).await?;
            let found: Vec<_> = marks.iter().map(|(subject, _)| subject).collect();
            ensure_eq!(found, must_be, "{prefix:?} in pages of {limit}");
        }
    }
    let what = List::Marks { tenant: None, prefix: String::new() };
    for (subject, mark) in bench.list_marks(&what, 100).await? {
        ensure_eq!(bench.mark(&subject).await?, Some(mark), "{subject:?}");
    }
    Ok(())
}

/// A prefix is compared byte by byte: no wildcards, no case folding.
pub async fn marks_are_found_by_prefix_alone(bench: &Bench<'_>) -> Checked {
    let spaces =
        ["doc", "Doc", "d_c", "d%c", "do", "docs", "d:c", "dé", "d\u{10ffff}", "\u{10ffff}"];
    let mut names = Vec::new();
    for space in spaces {
        for id in ["a", "a_b", "aXb", "A"] {
            let subject = Subject::new(TENANT, space, id)?;
            bench.apply(&bench.batch(vec![], vec![mark_at(&subject, 1)])).await?;
            names.push(subject.name_column().to_string());
        }
    }
    names.sort();
    let prefixes = [
        "",
        "d",
        "do",
        "doc",
        "doc:",
        "doc:a",
        "doc:a_",
        "d_",
        "d%",
        "d%25",
        "d%3A",
        "D",
        "x",
        "d\u{e9}",
        "d\u{10ffff}",
        "\u{10ffff}",
        "\u{10ffff}:a",
        "doc:a_b",
        "doc:a_bc",
        "_",
        "%",
    ];
    for prefix in prefixes {
        let what = List::Marks { tenant: Some(TENANT.into()), prefix: prefix.into() };
        let marks = bench.list_marks(&what, 3).await?;
        let found: Vec<_> = marks.iter().map(|(subject, _)| subject.name_column()).collect();
        let must_be: Vec<_> = names.iter().filter(|name| name.starts_with(prefix)).collect();
        ensure_eq!(found, must_be, "names that start with {prefix:?}");
    }
    Ok(())
}

/// Where lists are current, a commit is listed at once; where not, after a while.
pub async fn lists_see_commits_at_once_or_after_a_while(bench: &Bench<'_>) -> Checked {
    for n in 0..10 {
        bench.insert(&draft(&key(&format!("{n}"))?)).await?;
        if bench.can.lists_are_current {
            let page = bench.store.list(all_records(), None, 100).await?;
            ensure_eq!(flat(vec![page.items]).len(), n + 1, "listed at once");
        }
        ensure_eq!(bench.list_keys(&all_records(), 100).await?.len(), n + 1, "after a while");
    }
    Ok(())
}

/// An empty store lists nothing, of every kind, in one page.
pub async fn a_list_of_nothing_is_empty(bench: &Bench<'_>) -> Checked {
    let lists = [
        all_records(),
        due(),
        List::Sweepable,
        List::Marks { tenant: Some(TENANT.into()), prefix: String::new() },
        List::Marks { tenant: None, prefix: String::new() },
        super::bench::all_audit(),
    ];
    for what in lists {
        let pages = bench.walk(&what, 10).await?;
        ensure_eq!(pages.len(), 1, "{what:?}: pages");
        ensure_eq!(flat(pages), Vec::<String>::new(), "{what:?}");
    }
    Ok(())
}
