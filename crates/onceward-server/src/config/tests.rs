//! Files, good and bad, and what is said about them.

use super::*;
use crate::config::field::{Size, Span};
use crate::config::reference;
use onceward::http::{IfMatch, MissingKey, Mode, RateLimit};
use onceward_core::canonical::Arrays;
use onceward_core::payload::KeepPayload;
use onceward_core::record::OnAbandoned;

/// For routes whose requests the gateway completes.
fn no_permits() -> PermitText {
    PermitText(std::sync::Arc::new(|_, _, _| unreachable!()))
}

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "o.toml", &Flags::default()).map_err(|problems| problems.to_string())
}

/// Every problem that a file has, line by line, and no other.
#[track_caller]
fn wrong(text: &str, expected: &[&str]) {
    let found = parse(text).expect_err(text);
    let found: Vec<_> = found.lines().collect();
    assert_eq!(found.len(), expected.len(), "{text}\n{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{text}\n{found}\nhas no {expected:?}");
    }
}

#[test]
fn without_a_file_everything_has_its_default() {
    let config = parse("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:7600");
    assert_eq!(config.server.admin.to_string(), "127.0.0.1:7601");
    assert_eq!(config.store.url, "sqlite:onceward.db");
    assert_eq!(config.identity.source, Source::Authorization);
    assert_eq!(config.engine_options().waiters_per_key_max, 1_000);
    assert_eq!(config.engine_options().waiters_max, 100_000);
    let unwritten = config.unwritten.policy();
    let expected = Policy { remember_ms: Some(86_400_000), ..Policy::unwritten() };
    assert_eq!(format!("{unwritten:?}"), format!("{expected:?}"));
}

#[test]
fn a_route_has_the_defaults_of_the_wire() {
    let config = parse("[[route]]\nmatch = \"POST /x/{id}\"").unwrap();
    let policy = config.routes[0].policy();
    let expected = Policy { remember_ms: Some(86_400_000), ..Policy::default() };
    assert_eq!(format!("{policy:?}"), format!("{expected:?}"));
    assert_eq!((policy.retain_ms, policy.retain_errors_ms), (86_400_000, 14_400_000));
    assert_eq!((policy.wait_ms, policy.lease_ms), (2_000, 30_000));
    assert_eq!((policy.max_request_bytes, policy.max_stored_bytes), (8 << 20, 1 << 20));
}

#[test]
fn h3_a_route_moves_error_statuses_each_to_one_side() {
    let route = |fields: &str| format!("[[route]]\nmatch = \"POST /x\"\n{fields}");
    let moved = parse(&route("final = [401, 500]\nretryable = [404]")).unwrap();
    let statuses = moved.routes[0].policy().statuses;
    assert_eq!((statuses.stored, statuses.released), (vec![401, 500], vec![404]));
    for (fields, expected) in [
        ("final = [200]", "route[0].final: 200 is out of bounds: an error status"),
        ("retryable = [600]", "route[0].retryable: 600 is out of bounds: an error status"),
        ("final = [409, 409]", "route[0].final: 409 is out of bounds: named once"),
        ("final = [409]\nretryable = [409]", "route[0].retryable: 409 is out of bounds: in one"),
        ("final = [\"5xx\"]", "route[0].final[0]: \"5xx\" is not the number of a status"),
        ("final = 409", "route[0].final: 409 is not a list"),
    ] {
        wrong(&route(fields), &[expected]);
    }
    let both = "final = [399]\nretryable = [99999]";
    wrong(&route(both), &["route[0].final", "route[0].retryable"]);
}

#[test]
fn every_field_of_a_route_reaches_its_policy() {
    let text = r#"
        [server]
        upstream = "http://127.0.0.1:1"
        [[route]]
        match = "PUT /v1/things/{id}"
        upstream = "https://other.example/base"
        dialect = "business"
        missing_key = "derive"
        scope = ["endpoint", "tenant"]
        fingerprint = { ignore = ["sent_at"], arrays = "unordered", body = "json" }
        retain = "30m"
        remember = "1h"
        wait = "500ms"
        lease = "10s"
        on_abandoned = "hold"
        if_match = "require"
        max_request_bytes = 1000
        max_stored_bytes = "2KiB"
        store_headers = ["X-Total"]
        complete = "gateway"
        authorize = "http://127.0.0.1:9/may"
        rate_limit = { rate = "100/s", burst = 200 }
        breaker = { failures = 3, open = "5s", trials = 2 }
        mode = "shadow"
        mask = ["pin"]
        [[route]]
        match = "POST /v1/things"
        rate_limit = "60/m"
        breaker = "on"
        keep_payload = "none"
    "#;
    let config = parse(text).unwrap();
    let policy = config.routes[0].policy();
    assert_eq!(format!("{:?}", policy.dialect), "business");
    assert!(!policy.per_caller);
    assert_eq!(policy.fingerprint.arrays, Arrays::Unordered);
    assert_eq!(policy.fingerprint.ignore, ["sent_at"]);
    assert_eq!(policy.retain_errors_ms, 1_800_000, "no longer than a success");
    assert_eq!(
        (policy.remember_ms, policy.wait_ms, policy.lease_ms),
        (Some(3_600_000), 500, 10_000)
    );
    assert_eq!((policy.on_abandoned, policy.if_match), (OnAbandoned::Hold, IfMatch::Require));
    assert_eq!((policy.max_request_bytes, policy.max_stored_bytes), (1_000, 2_048));
    assert_eq!(policy.store_headers[0].as_str(), "x-total");
    assert_eq!(policy.rate_limit, RateLimit::new(100, 1_000, 200).ok());
    let breaker = policy.breaker.unwrap();
    assert_eq!((breaker.failures, breaker.open_ms, breaker.trials), (3, 5_000, 2));
    assert_eq!((policy.mode, policy.keep_payload), (Mode::Shadow, KeepPayload::Full));
    assert_eq!(policy.mask, ["pin"]);
    let second = config.routes[1].policy();
    assert_eq!(second.rate_limit, RateLimit::new(60, 60_000, 60).ok());
    assert_eq!(second.breaker, Some(Default::default()));
    assert_eq!(second.keep_payload, KeepPayload::None);
    let other = config.routes[0].upstream.as_ref().unwrap();
    assert_eq!(other.0.to_string(), "https://other.example/base");
    assert_eq!(config.routes[1].upstream, None, "it goes where the server's upstream is");
    let mut asked = Vec::new();
    let asked_cell = std::cell::RefCell::new(&mut asked);
    let hook = |url: &Url, _: &RouteSection| {
        asked_cell.borrow_mut().push(url.0.to_string());
        Authorize::new(|_, _| Box::pin(async { Ok(()) }))
    };
    let routes = config.http_routes(hook, &no_permits()).unwrap();
    assert!(routes.list().next().unwrap().1.authorize.is_some());
    assert_eq!(asked, ["http://127.0.0.1:9/may"]);
    // What it comes to says the same again.
    assert_eq!(parse(&reference::effective(&config)).unwrap(), config);
}

#[test]
fn what_is_wrong_is_told_at_once_with_line_path_and_suggestion() {
    let text = "[server]\nlisten = \"7600\"\n[[route]]\nmatch = \"POST /x\"\nretian = \"24h\"\n\
                lease = 30\n[[route]]\nmatch = \"GET /x\"\n[identiy]\n";
    wrong(
        text,
        &[
            "o.toml:2: server.listen: \"7600\" is not an address",
            "o.toml:5: route[0].retian: unknown field; did you mean `retain`?",
            "o.toml:6: route[0].lease: 30 is not a length of time such as",
            "o.toml:8: route[1].match: \"GET /x\" is out of bounds: POST, PUT, PATCH or DELETE",
            "o.toml:9: identiy: unknown field; did you mean `identity`?",
        ],
    );
}

#[test]
fn bad_files_say_what_would_be_right() {
    let route = |line: &str| format!("[[route]]\nmatch = \"POST /x\"\n{line}\n");
    for (text, expected) in [
        ("[server]\nlisten = ".into(), "o.toml:2"),
        ("server = 1".into(), "o.toml:1: server: is a section: write [server]"),
        ("route = 1".into(), "route: there may be up to 10000, each begun with [[route]]"),
        ("retain = \"24h\"".into(), "`retain` belongs into [[route]]"),
        ("[limits]\nlisten = \"127.0.0.1:1\"".into(), "`listen` belongs into [server]"),
        ("[cache]\nuri = \"redis://h\"".into(), "cache.uri: unknown field"),
        ("[cache]\nurl = \"rediss://h\"".into(), "cache.url: the cache's URL asks for TLS"),
        (
            format!("[cache]\nurl = \"redis://h\"\nenv = \"{}\"", "x".repeat(65)),
            "env is 65 bytes, but must be 1 to",
        ),
        ("[cache]\nurl = \"redis://h\"\ntimeout = \"6s\"".into(), "must be 1 ms to 5 s"),
        ("[server]\ntls_cert = \"a.pem\"".into(), "o.toml:2: server.tls_cert: needs `tls_key`"),
        ("[server]\nupstream = \"ftp://h\"".into(), "http:// or https://"),
        ("[server]\nupstream_timeout = \"0s\"".into(), "more than nothing and at most \"24h\""),
        ("[store]\nurl = \"redis://u:hunter2@h\"".into(), "store.url: redis: this build"),
        ("[store]\ndurability = \"ful\"".into(), "did you mean \"full\"?"),
        ("[identity]\nsource = \"jtw\"".into(), "did you mean \"jwt\"?"),
        ("[identity]\nsource = \"principals\"".into(), "needs at least one [[principal]]"),
        ("[identity]\njwks_file = \"k\"".into(), "does nothing without `source = \"jwt\"`"),
        (
            "[identity]\ntenant_header = \"host\"\ncaller_header = \"x-user\"".into(),
            "a meaning of its own",
        ),
        ("[identity]\ntenant_header = \"x-org\"".into(), "needs `caller_header` beside it"),
        ("[identity]\ntenant_header = \"a b\"".into(), "is not the name of an HTTP header"),
        ("[limits]\nwaiters = 0".into(), "limits.waiters: 0: 1 to 10,000,000"),
        ("[[principal]]\ntoken_sha256 = \"x\"\ntenant = \"a\"\ncaller = \"b\"".into(), "sha256sum"),
        ("[[queue]]\nlease = \"1m\"".into(), "queue[0].name: 1 to 512 bytes"),
        ("[[queue]]\nname = \"a\"\nattempts = 1001".into(), "queue[0].attempts: 1001"),
        ("[[route]]\nretain = \"24h\"".into(), "route[0].match: is missing"),
        (
            route("retain = \"20s\""),
            "o.toml:3: route[0].retain: \"20s\" is out of bounds: at least \"",
        ),
        (route("retain_errors = \"25h\""), "route[0].retain_errors"),
        (
            route("retain = \"24h\"\nretain_errors = \"20s\""),
            "o.toml:4: route[0].retain_errors: \"20s\" is out of bounds: at least \"",
        ),
        (
            route("store_headers = [\"X-Total\", \"Set-Cookie\"]"),
            "o.toml:3: route[0].store_headers: set-cookie is out of bounds",
        ),
        (route("store_headers = [\"X-RateLimit-Limit\"]"), "route[0].store_headers: x-ratelimit"),
        (
            route("lease = \"10ms\""),
            "route[0].lease: \"10ms\" is out of bounds: between \"100ms\" and \"24h\"",
        ),
        (route("wait = \"2m\""), "route[0].wait: \"2m\""),
        (route("max_stored_bytes = \"2MiB\""), "route[0].max_stored_bytes: 2097152"),
        (route("scope = [\"tenant\"]"), "can't be left out, only \"caller\" can"),
        (route("scope = [\"tennant\"]"), "route[0].scope[0]: \"tennant\" is not known; did you"),
        (route("rate_limit = \"fast\""), "a rate such as \"100/s\""),
        (route("rate_limit = { rate = \"1/s\", brust = 2 }"), "did you mean `burst`?"),
        (route("breaker = { failures = 0 }"), "failures is 0"),
        (route("fingerprint = { array = \"ordered\" }"), "did you mean `arrays`?"),
        (route("mode = \"shadows\""), "did you mean \"shadow\"?"),
        (route("store_headers = \"x\""), "is not a list"),
        (format!("{}{}", route(""), route("")), "is there twice"),
    ] {
        wrong(&text, &[expected]);
        assert!(!parse(&text).unwrap_err().contains("hunter2"));
    }
    wrong(
        "[identity]\nsource = \"header\"",
        &["identity.tenant_header: is missing", "identity.caller_header: is missing"],
    );
}

#[test]
fn a_route_that_could_never_match_is_refused() {
    let routes = |matches: &[&str]| -> String {
        matches.iter().map(|text| format!("[[route]]\nmatch = \"{text}\"\n")).collect()
    };
    for (matches, expected) in [
        (
            &["POST /x/{a}", "POST /x/{b}"][..],
            "o.toml:4: route[1].match: \"POST /x/{b}\" matches what \"POST /x/{a}\" does",
        ),
        (&["POST /é", "POST /%c3%a9"], "\"POST /%c3%a9\" matches what \"POST /é\" does"),
        (&["POST /x?a=1"], "route[0].match: \"POST /x?a=1\" is out of bounds: a path as requests"),
        (&["POST /x#a"], "leave out `?` and `#` and what follows them"),
        (&["POST /{x}", "POST /b"], "o.toml:4: route[1].match: \"POST /b\" is never reached: \"PO"),
        (
            &["POST /{a}/x/{b}", "PUT /y", "POST /{a}/x/b"],
            "o.toml:6: route[2].match: \"POST /{a}/x/b\" is never reached",
        ),
        (&["POST /a b"], "white space and the like encoded, as in %20"),
    ] {
        wrong(&routes(matches), &[expected]);
    }
    parse(&routes(&["POST /x/{a}", "PUT /x/{a}", "POST /x/{a}/y", "POST /{a}/é"])).unwrap();
    // The narrower one first; and no value of a parameter is empty.
    parse(&routes(&["POST /b", "POST /{x}", "POST /{x}/{y}", "POST /b/"])).unwrap();
    parse(&routes(&["POST /{x}/b", "POST /a/{y}", "POST /{x}/{y}"])).unwrap();
}

#[test]
fn h4_routes_of_other_frameworks_are_refused_by_field_with_what_to_write() {
    for (path, told) in [
        ("/orders/:id/cancel", "Express, Rails and Gin write a parameter; write {id}"),
        ("/files/{*rest}", "axum, Spring and ASP.NET write the rest of a path"),
        ("/files/{rest...}", "Go writes the rest of a path"),
        ("/orders/{id:[0-9]+}", "a parameter with a pattern"),
        ("/files/{p:path}", "FastAPI and Starlette write the rest of a path"),
        ("/orders/{order-id}", "write {order_id}"),
        ("/a/../b", "a path without `.` and `..`"),
        ("/{id}/{id}", "{id} is there twice: call the second one {id2}"),
        ("/a//b", "write one slash"),
        ("/orders/<int:id>", "Flask and Django write a parameter; write {id}"),
    ] {
        let file =
            format!("[[route]]\nmatch = \"POST /fine\"\n[[route]]\nmatch = \"POST {path}\"\n");
        wrong(&file, &[told]);
        assert!(parse(&file).unwrap_err().contains("o.toml:4: route[1].match: "), "{path}");
    }
}

#[test]
fn h4_many_routes_are_looked_through_in_a_moment() {
    let file: String =
        (0..5_000).map(|at| format!("[[route]]\nmatch = \"POST /v{at}/{{id}}/x\"\n")).collect();
    let begun = std::time::Instant::now();
    parse(&file).unwrap();
    let told = format!("{file}[[route]]\nmatch = \"POST /v4999/y/x\"\n");
    wrong(&told, &["o.toml:10002: route[5000].match: \"POST /v4999/y/x\" is never reached"]);
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[test]
fn l5_identities_of_the_file_are_what_a_header_carries() {
    let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    for bad in [" acme", "acme ", "ac\\tme", "ac\\nme"] {
        let file = |tenant: &str, caller: &str| {
            format!(
                "[[principal]]\ntoken_sha256 = \"{hash}\"\ntenant = \"{tenant}\"\n\
                 caller = \"{caller}\"\n"
            )
        };
        wrong(&file(bad, "ada"), &["o.toml:3: principal[0].tenant: no control characters"]);
        wrong(&file("acme", bad), &["o.toml:4: principal[0].caller: no control characters"]);
    }
    let jwt = "[identity]\nsource = \"jwt\"\njwks_file = \"k\"\nissuer = \" https://i\"\n";
    wrong(jwt, &["o.toml:4: identity.issuer: no control characters"]);
}

#[test]
fn r08_the_start_says_what_is_protected_and_what_passes() {
    let route = |path: &str, mode: &str| {
        format!("[[route]]\nmatch = \"POST /{path}\"\nmode = \"{mode}\"\n")
    };
    let three = [route("a", "enforce"), route("b", "enforce"), route("c", "shadow")].concat();
    let refusing = |word: &str| format!("[server]\nunmatched = \"{word}\"\n{three}");
    for (file, told) in [
        (three.clone(), "2 routes protected, 1 in shadow mode, others pass"),
        (
            refusing("refuse_keyed"),
            "2 routes protected, 1 in shadow mode, others pass without a key",
        ),
        (refusing("refuse"), "2 routes protected, 1 in shadow mode, others refused"),
        (route("a", "off"), "0 routes protected, 1 off, others pass"),
        (String::new(), "every POST, PUT, PATCH and DELETE with a key is protected"),
    ] {
        let config = parse(&file).unwrap();
        assert_eq!(config.protection(), format!("no config file · {told}"));
        let named = Config { file: Some("o.toml".into()), ..config };
        assert_eq!(named.protection(), format!("config o.toml · {told}"));
    }
}

#[test]
fn r17_an_identity_that_anybody_may_claim_is_told_of_beyond_loopback() {
    let header = "source = \"header\"\ntenant_header = \"x-t\"\ncaller_header = \"x-c\"";
    for (listen, identity, told) in [
        ("0.0.0.0:0", "source = \"single\"", Some("the same caller")),
        ("192.0.2.1:80", header, Some("may name any tenant and caller")),
        ("[::]:0", "source = \"single\"", Some("[::]:0, which is not loopback")),
        ("127.0.0.2:0", "source = \"single\"", None),
        ("[::1]:0", header, None),
        ("0.0.0.0:0", "source = \"authorization\"", None),
    ] {
        let file = format!("[server]\nlisten = \"{listen}\"\n[identity]\n{identity}\n");
        let open = parse(&file).unwrap().open_identity();
        assert_eq!(open.is_some(), told.is_some(), "{file}");
        assert!(told.is_none_or(|told| open.unwrap().contains(told)), "{file}");
    }
}

/// What `serve` refuses, `config check` refuses.
#[test]
fn what_could_never_be_served_is_told_with_everything_else() {
    let many: String = (0..16).map(|at| format!("/{{p{at}}}")).collect();
    wrong(
        &format!(
            "[server]\nupstream = \"http://h/?a=1\"\n[[route]]\nmatch = \"POST /x\"\n\
             upstream = \"https://h/b?c\"\ncomplete = \"upstream\"\nlease = \"10ms\"\n\
             wait = \"2m\"\nretain = \"20s\"\nmax_stored_bytes = \"2MiB\"\n\
             store_headers = [\"Date\"]\n[[route]]\nmatch = \"POST {many}\"\n\
             [[route]]\nmatch = \"POST /v1/*\"\nwait = \"2m\"\n"
        ),
        &[
            "o.toml:2: server.upstream: it has a query; it takes a URL",
            "o.toml:5: route[0].upstream: it has a query",
            "o.toml:6: route[0].complete: \"upstream\" needs a Postgres store",
            "o.toml:7: route[0].lease: \"10ms\" is out of bounds",
            "o.toml:8: route[0].wait: \"2m\" is out of bounds: between \"0ms\" and \"1m\"",
            "o.toml:9: route[0].retain: \"20s\" is out of bounds: at least",
            "o.toml:10: route[0].max_stored_bytes: 2097152",
            "o.toml:11: route[0].store_headers: date",
            "out of bounds: at most 15 parameters",
            "o.toml:15: route[2].match: \"POST /v1/*\" is out of bounds: a path without wildcards",
            "o.toml:16: route[2].wait",
        ],
    );
    #[cfg(feature = "postgres")]
    parse(
        "[store]\nurl = \"postgres://h/d\"\n\
         [[route]]\nmatch = \"POST /x\"\ncomplete = \"upstream\"\n",
    )
    .unwrap();
}

#[test]
fn without_a_word_about_missing_keys_a_route_does_what_its_dialect_does() {
    for (line, expected) in [
        ("", MissingKey::Require),
        ("dialect = \"planning\"", MissingKey::Require),
        ("dialect = \"business\"", MissingKey::Derive),
        ("dialect = \"measurements\"", MissingKey::Allow),
        ("dialect = \"measurements\"\nmissing_key = \"require\"", MissingKey::Require),
    ] {
        let config = parse(&format!("[[route]]\nmatch = \"POST /x\"\n{line}\n")).unwrap();
        assert_eq!(config.routes[0].policy().missing_key, expected, "{line}");
    }
    assert_eq!(parse("").unwrap().unwritten.policy().missing_key, MissingKey::Allow);
}

#[test]
fn identity_headers_are_no_other_spellings_of_what_the_gateway_removes() {
    for (tenant, caller, expected) in [
        ("onceward_org", "x-user", "`onceward_org` has a meaning of its own"),
        ("x-org", "x_forwarded_for", "`x_forwarded_for` has a meaning of its own"),
        ("x-org", "x_org", "is the tenant's header too"),
        ("te", "x-user", "`te` has a meaning of its own"),
        ("x-org", "keep_alive", "`keep_alive` has a meaning of its own"),
    ] {
        let text =
            format!("[identity]\ntenant_header = \"{tenant}\"\ncaller_header = \"{caller}\"\n");
        let problems = parse(&text).unwrap_err().to_string();
        assert!(problems.contains(expected), "{tenant}, {caller}: {problems}");
    }
}

#[test]
fn flags_win_over_the_file_and_are_named_when_they_are_wrong() {
    let text = "[server]\nlisten = \"127.0.0.1:1\"\n[store]\nurl = \"memory:\"\n\
                [identity]\nsource = \"jwt\"\njwks_file = \"k\"\nissuer = \"i\"\n";
    let some = |text: &str| Some(text.to_string());
    let flags = Flags {
        listen: some("127.0.0.1:2"),
        store: some("sqlite:other.db"),
        identity: some("single"),
        max_connections: some("7"),
        lease: some("5s"),
        max_request_bytes: some("100"),
        ..Flags::default()
    };
    let config = Config::parse(text, "o.toml", &flags).unwrap();
    assert_eq!(config.server.listen.port(), 2);
    assert_eq!(config.store.url, "sqlite:other.db");
    assert_eq!(config.identity.source, Source::Single);
    assert_eq!(config.limits.connections, 7);
    assert_eq!(
        (config.unwritten.lease, config.unwritten.max_request_bytes),
        (Span(5_000), Size(100))
    );
    let flags = Flags { listen: some("x"), wait: some("2"), ..Flags::default() };
    let problems = Config::parse("", "o.toml", &flags).unwrap_err().to_string();
    assert!(problems.contains("--listen: \"x\" is not an address"), "{problems}");
    assert!(problems.contains("--wait: \"2\" is not a length of time"), "{problems}");
    for (flags, told) in [
        (Flags { lease: some("10h"), ..Flags::default() }, "retain_errors: \"4h\" is out of"),
        (Flags { lease: some("1ms"), ..Flags::default() }, "--lease: \"1ms\" is out of bounds"),
        (Flags { upstream: some("http://u:pw@x/"), ..Flags::default() }, "--upstream: a URL with"),
    ] {
        let problems = Config::parse("", "", &flags).unwrap_err().to_string();
        assert!(problems.starts_with(told) && !problems.contains("pw"), "{problems}");
    }
    let flags = Flags { lease: some("5s"), ..Flags::default() };
    let routes = "[[route]]\nmatch = \"POST /x\"";
    let problems = Config::parse(routes, "o.toml", &flags).unwrap_err().to_string();
    assert!(problems.contains("--lease: the file has routes of its own"), "{problems}");
}

#[test]
fn the_example_is_the_defaults() {
    let example = reference::example();
    assert_eq!(parse(&example).unwrap(), Config::default());
    // With every `#` before a field or a table taken away it is still a file that fits.
    let whole: Vec<&str> = example
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(field) if !field.starts_with(' ') => field,
            _ => line,
        })
        .collect();
    let whole = whole.join("\n").replace("source = \"authorization\"", "source = \"jwt\"");
    let whole = whole.replace("strict = false\n", "");
    let config = parse(&whole).unwrap();
    assert_eq!((config.routes.len(), config.queues.len(), config.principals.len()), (1, 1, 1));
    let route = &config.routes[0];
    let default = RouteSection {
        r#match: route.r#match.clone(),
        upstream: route.upstream.clone(),
        authorize: route.authorize.clone(),
        missing_key: Some(MissingKey::Require),
        retain_errors: Some(Span::hours(4)),
        remember: Some(Span::hours(24)),
        keep_payload: Some(KeepPayload::Hashed),
        ..RouteSection::default()
    };
    assert_eq!(*route, default);
}

#[tokio::test]
async fn a_door_is_built_from_it() {
    let text = "[identity]\nsource = \"single\"\ntenant_header = \"x-org\"\n\
                caller_header = \"x-user\"\n[[route]]\nmatch = \"POST /x\"\nmode = \"shadow\"\n";
    let config = parse(text).unwrap();
    let engine = Engine::new(std::sync::Arc::new(onceward::store::memory::MemoryStore::new()));
    let secret = Secret::load(None, &engine).await.unwrap();
    let (identity, _) = crate::identity::from_config(&config, &secret).unwrap();
    let routes = config.http_routes(|_, _| unreachable!(), &no_permits()).unwrap();
    let door = config.door(engine, identity, routes, &secret);
    assert_eq!(door.shadow_report().routes[0].endpoint, "POST /x");
    let told: Vec<_> = config.told_headers().into_iter().collect();
    assert_eq!(told[0].0.as_str(), "x-org");
    let trusted = text.replace("single", "header");
    assert!(parse(&trusted).unwrap().told_headers().is_none(), "what is read is not replaced");
}

#[test]
fn the_reference_page_is_in_step() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let there = std::fs::read_to_string(path).unwrap_or_default();
    if std::env::var_os("ONCEWARD_TEST_WRITE").is_some() {
        std::fs::write(path, reference::page()).unwrap();
    } else if there != reference::page() {
        panic!("docs/configuration.md is stale: run this test with ONCEWARD_TEST_WRITE=1");
    }
}
