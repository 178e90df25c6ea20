//! Requests of nobody: what the client, the log and `WWW-Authenticate` say about them.

use http::header::AUTHORIZATION;
use serde_json::json;

use super::client::{Answer, request, send};
use super::target::{Gateway, command, folder, serve};
use super::upstream::App;

/// The gateway under a configuration, with access lines in its log.
async fn start(name: &str, file: &str) -> Gateway {
    let folder = folder(name);
    std::fs::write(folder.join("onceward.toml"), file).unwrap();
    let key = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "k", "x": "A".repeat(43) });
    std::fs::write(folder.join("jwks.json"), json!({ "keys": [key] }).to_string()).unwrap();
    let upstream = serve(App::new().router()).await;
    let mut serve = command(&folder, &["serve", "--upstream", &format!("http://{upstream}")]);
    serve.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-level", "info"]);
    Gateway::spawn(&folder, serve)
}

async fn by(gateway: &Gateway, credential: Option<&str>) -> Answer {
    let mut request = request("/payments", Some("k"), "{}");
    request.headers_mut().remove(AUTHORIZATION);
    if let Some(credential) = credential {
        request.headers_mut().insert(AUTHORIZATION, credential.parse().unwrap());
    }
    send(gateway.listen, request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r10_a_refused_jwt_says_why_in_the_answer_and_in_the_access_line() {
    let file = "[identity]\nsource = \"jwt\"\njwks_file = \"jwks.json\"\n\
                issuer = \"https://login.example\"\n";
    let gateway = start("who_jwt", file).await;
    let rubbish = "not-a-token-of-anybody";
    let refused = by(&gateway, Some(&format!("Bearer {rubbish}"))).await;
    assert_eq!(refused.problem(), (401, "auth.required".into()));
    let reason = "the token is not readable as a JWT";
    let challenge = format!("Bearer error=\"invalid_token\", error_description=\"{reason}\"");
    assert_eq!(refused.header("www-authenticate"), Some(&*challenge));
    assert!(refused.json()["detail"].as_str().unwrap().contains(reason), "{refused:?}");
    // Without any, no token is at fault (RFC 6750, section 3.1).
    let nobody = by(&gateway, None).await;
    assert_eq!(nobody.header("www-authenticate"), Some("Bearer"));
    assert!(nobody.json()["detail"].as_str().unwrap().contains("JWT"), "{nobody:?}");
    gateway.terminate();
    let (code, said) = gateway.ended();
    assert_eq!(code, Some(0), "{said}");
    let access: Vec<&str> = said.lines().filter(|line| line.contains("onceward::access")).collect();
    assert_eq!(access.len(), 2, "{said}");
    assert!(access[0].contains(&format!("reason=\"{reason}\"")), "{said}");
    assert!(access[0].contains("request_id="), "{said}");
    assert!(!said.contains(rubbish) && !access[1].contains("reason"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r17_a_401_without_credentials_says_what_is_looked_for_and_hints_once() {
    for (name, file, looked_for) in [
        ("who_default", "", "Authorization"),
        ("who_strict", "[identity]\nstrict = true\n", "Authorization"),
        (
            "who_header",
            "[identity]\nsource = \"header\"\ntenant_header = \"x-t\"\ncaller_header = \"x-c\"\n",
            "headers that the proxy in front sets",
        ),
    ] {
        let gateway = start(name, file).await;
        for _ in 0..3 {
            let nobody = by(&gateway, None).await;
            assert_eq!(nobody.problem(), (401, "auth.required".into()));
            let detail = nobody.json()["detail"].as_str().unwrap().to_string();
            assert!(detail.contains(looked_for), "{name}: {detail}");
        }
        gateway.terminate();
        let (_, said) = gateway.ended();
        let hints: Vec<&str> = said.lines().filter(|line| line.contains("--identity")).collect();
        assert_eq!(hints.len(), 1, "{said}");
        assert!(hints[0].contains(" WARN ") && hints[0].contains("single"), "{said}");
    }
}
