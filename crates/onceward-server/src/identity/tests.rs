//! Who asks, from every source: real tokens with real keys, real files, a real store.

use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use onceward::engine::Engine;
use onceward::store::memory::MemoryStore;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256,
    RsaKeyPair,
};
use serde_json::{Value, json};

use super::base64url::{decode, encode};
use super::jwt::Refused;
use super::*;
use crate::config::flags::Flags;
use crate::config::sections::IdentitySection;

const NOW: u64 = 1_800_000_000;
const ISSUER: &str = "https://login.example";

/// A key for tests alone: it signs nothing else, anywhere.
const RSA_PKCS8: &str = "\
    MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQDJg3Xdci44EIBlNLH7lt0LZ9-JgutHNbC7aEDv3Srb\
    CgZiX8eIHjwIj0Qe_g4-wXVM-O3q8qWgArSIzMivJiysGKadV5XWDyUCdfsz4nfpocrLX2I3e74SwpviZUVlXcQUVV9x\
    HDu9vuknjixgwOAzCXEO_9shIiiI7FdLdPt3oaKr1uuiaIb6wdLcAXs1EDPVFMhB4C-YzPPrrYSe6GFlFJXvFB-PcQj4\
    G5BX1CwawQFaP9-V9_ih5X78-SKGK78gg4x2hZd_ZWUwIg0y6-41a1VM6ealGW1Za85RC7AFtO1eJLsuc2p_DNoU54b4\
    bcuZwsSYGIoyNJCQXaIKLP43AgMBAAECggEACYMMjbrlhpz0ypItspAA-Bhbm1yUKYTVxkraAdiBPNygx4T44Kp4r_i_\
    QO1CE-FC3bLEXDo-6iomhmyQLoBRTIBPYQ7w0i1d1FtoU58lhOAvt-DVPIQ5SR5piEq6d1nxNvp-qlKoWUEJNWZHHvwL\
    uS0BarFWER7RJgFt73BirFdd1MrflKnZdMeq_HTfSLNDqel4lj3gXelgbnaJ19BP9dCW5hltkRE-Q0prWdKy7KY5LJqJ\
    e9qLQzeL0u9sdOus1bBSHf_cCp_gdVGdXOZTXdUt0v7BZM7hg1oUq8OsOfw72L0-o4zTojqOXDlVsjyT2WvnRlTbTN5O\
    XcWi9u17GQKBgQD4TVbKdPqkZ-J5v_8zSVZPV8IU7uEOV37Vz4J1GxJhkmcGsmyJGTmjBTc11uF9uon3930bxHACmjid\
    kASCH8YutBDO3RmobsXOkfk-qJTBFpiaSeHc6wTVacYpxy5BaPrKqdYkYs0fqSQryokiB2pj8x4XU2lq99eof1I2-LLP\
    rwKBgQDPwsgYR0Ea6ykvJItX4uio7u7wwGaQSY93CuqcdSJb1cbyhrvj4PGRWb2HtXOM33qJi3_vBnM4tU8zEGp6OMnM\
    uKbkTT-TAJNqqL7y_g5-_hcSjSQ5mEtEdZOu5Uel1mj3tzy5Z1q4-g6IkqNq-gLG8URAgogs3SGtLjcXxVkT-QKBgQCq\
    lXdq37LSAAy3WBAbS-bf24qalwJGuBWLDmSxz0dxgQMGts2Z4pqWRJ8JffasSds_X-ezi-Dn6Mu8c5SlUO72Zv6lH4Dh\
    FjkPEXoKcgbAIKX2WYuyGkPX2jMpwI0motipIsTbeoUxmyIec6aCmlWdFQk3PTbPJjYirFXvLiyqQQKBgQCt5cRkBegp\
    puH-8qCrfGLvW6al3vU6Gkg6BOog8S5EHeh7AWltMNAhsDKiz68bH8dKL3hy0jxJIAFdpYTqLnRCpeATQdFPsvCxGvNR\
    InNxui4HuhmzF5UQhTWK86CH37JWfYoXSbo3EB5wFAUyunbum-1b7aYbny_b683zWJzZyQKBgBRps2EGAc0i1zo-sl6U\
    hk-_KsXJa3DeWKakkxQaaqBiQ_Zxnp9izB4TweFYphRtnZRZCXs4y0GTVgVks_xcpy729Ml4DVfqrqwWtM95R1PXp7-A\
    aq8HBWfZT9aBbdunMr7FYx9RaCGpu7n5Vh0DsEsAweesOohluNky42dYcZx-";

enum Signer {
    Rsa(RsaKeyPair),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signer {
    fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::from_pkcs8(&decode(RSA_PKCS8).unwrap()).unwrap())
    }

    fn ec() -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self::Ec(EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).unwrap())
    }

    fn ed() -> Self {
        let key = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self::Ed(Ed25519KeyPair::from_pkcs8(key.as_ref()).unwrap())
    }

    fn alg(&self) -> &'static str {
        match self {
            Self::Rsa(_) => "RS256",
            Self::Ec(_) => "ES256",
            Self::Ed(_) => "EdDSA",
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Rsa(key) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(key.public());
                json!({ "kty": "RSA", "kid": kid, "use": "sig",
                        "n": encode(&public.n), "e": encode(&public.e) })
            }
            Self::Ec(key) => {
                let point = key.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "kid": kid, "alg": "ES256",
                        "x": encode(&point[1..33]), "y": encode(&point[33..]) })
            }
            Self::Ed(key) => json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid,
                                     "x": encode(key.public_key().as_ref()) }),
        }
    }

    fn sign(&self, head: &Value, claims: &Value) -> String {
        let part = |value: &Value| encode(value.to_string().as_bytes());
        let message = format!("{}.{}", part(head), part(claims));
        let random = SystemRandom::new();
        let signature = match self {
            Self::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message.as_bytes(), &mut signature).unwrap();
                signature
            }
            Self::Ec(key) => key.sign(&random, message.as_bytes()).unwrap().as_ref().to_vec(),
            Self::Ed(key) => key.sign(message.as_bytes()).as_ref().to_vec(),
        };
        format!("{message}.{}", encode(&signature))
    }

    fn token(&self, kid: &str, claims: &Value) -> String {
        self.sign(&json!({ "alg": self.alg(), "kid": kid, "typ": "JWT" }), claims)
    }
}

fn claims() -> Value {
    json!({ "iss": ISSUER, "sub": "alice", "tenant": "acme", "exp": NOW + 600 })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

/// A folder of the test's own.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("onceward-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn keys(&self, keys: &[Value]) -> std::path::PathBuf {
        let path = self.0.join("jwks.json");
        std::fs::write(&path, json!({ "keys": keys }).to_string()).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn section(jwks_file: std::path::PathBuf) -> IdentitySection {
    IdentitySection {
        source: Source::Jwt,
        jwks_file: Some(jwks_file),
        issuer: Some(ISSUER.into()),
        ..IdentitySection::default()
    }
}

fn head(headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder();
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

#[test]
fn tokens_of_every_algorithm_name_their_caller() {
    let folder = Folder::new("jwt-algorithms");
    let signers = [Signer::rsa(), Signer::ec(), Signer::ed()];
    let keys: Vec<_> = signers.iter().map(|signer| signer.jwk(signer.alg())).collect();
    let jwt = Jwt::open(&section(folder.keys(&keys))).unwrap();
    for signer in &signers {
        let token = signer.token(signer.alg(), &claims());
        let caller = jwt.verify(&token, NOW, Instant::now()).unwrap();
        let expected =
            Caller { tenant: "acme".into(), caller: "https://login.example alice".into() };
        assert_eq!(caller, expected, "{}", signer.alg());
        // Without an id the algorithm tells which key is meant, as long as there is one.
        let unnamed = signer.sign(&json!({ "alg": signer.alg() }), &claims());
        assert!(jwt.verify(&unnamed, NOW, Instant::now()).is_ok());
        // A refreshed token is the same caller.
        let refreshed = signer.token(signer.alg(), &with("exp", json!(NOW + 9_999)));
        assert_eq!(jwt.verify(&refreshed, NOW, Instant::now()), Ok(expected));
    }
}

#[test]
fn claims_are_checked_within_the_difference_of_clocks() {
    let folder = Folder::new("jwt-claims");
    let signer = Signer::ed();
    let mut section = section(folder.keys(&[signer.jwk("k")]));
    let open = |section: &IdentitySection| Jwt::open(section).unwrap();
    let check = |jwt: &Jwt, claims: &Value, expected: Option<Refused>| {
        let found = jwt.verify(&signer.token("k", claims), NOW, Instant::now());
        assert_eq!(found.err(), expected, "{claims}");
    };
    let jwt = open(&section);
    for (claims, expected) in [
        (claims(), None),
        (with("exp", json!(NOW - 59)), None),
        (with("exp", json!(NOW - 60)), Some(Refused::Expired)),
        (without("exp"), Some(Refused::Expired)),
        (with("exp", json!("tomorrow")), Some(Refused::Expired)),
        (with("nbf", json!(NOW + 60)), None),
        (with("nbf", json!(NOW + 61)), Some(Refused::Early)),
        (with("iss", json!("https://login.example.evil")), Some(Refused::Issuer)),
        (without("iss"), Some(Refused::Issuer)),
        (without("sub"), Some(Refused::Subject)),
        (with("sub", json!("")), Some(Refused::Subject)),
        (without("tenant"), Some(Refused::Tenant)),
        (with("tenant", json!(7)), Some(Refused::Tenant)),
        (with("tenant", json!("x".repeat(513))), Some(Refused::Tenant)),
        (with("aud", json!("someone")), Some(Refused::Audience)),
    ] {
        check(&jwt, &claims, expected);
    }
    section.audience = vec!["api".into(), "admin".into()];
    section.tenant_claim = "org".into();
    let jwt = open(&section);
    let mut fine = with("aud", json!(["other", "api"]));
    fine["org"] = json!("acme");
    check(&jwt, &fine, None);
    fine["aud"] = json!("admin");
    check(&jwt, &fine, None);
    fine["aud"] = json!(["other"]);
    check(&jwt, &fine, Some(Refused::Audience));
    fine.as_object_mut().unwrap().remove("aud");
    check(&jwt, &fine, Some(Refused::Audience));
    // A long subject is still one caller, and fits into a key.
    fine["aud"] = json!("api");
    fine["sub"] = json!("s".repeat(2_000));
    let long = jwt.verify(&signer.token("k", &fine), NOW, Instant::now()).unwrap();
    assert!(long.caller.len() <= 512 && long.caller.starts_with("sha256:"));
}

#[test]
fn l5_a_token_names_nobody_that_a_header_does_not_carry_as_it_is() {
    let folder = Folder::new("jwt-carried");
    let signer = Signer::ed();
    let jwt = Jwt::open(&section(folder.keys(&[signer.jwk("k")]))).unwrap();
    let verified = |claims: &Value| jwt.verify(&signer.token("k", claims), NOW, Instant::now());
    let long = format!("{}\n", "s".repeat(2_000));
    for bad in ["ac\nme", "acme\u{0}", "\u{7f}", "ac\tme", " acme", "acme ", "\u{a0}acme", &long] {
        assert_eq!(verified(&with("sub", json!(bad))), Err(Refused::Subject), "{bad:?}");
        assert_eq!(verified(&with("tenant", json!(bad))), Err(Refused::Tenant), "{bad:?}");
    }
    for fine in ["acme inc", "größe", "a|b@c:d/e"] {
        assert_eq!(verified(&with("tenant", json!(fine))).unwrap().tenant, fine);
    }
}

#[test]
fn forged_tokens_are_refused() {
    let folder = Folder::new("jwt-forged");
    let (rsa, ec, stranger) = (Signer::rsa(), Signer::ec(), Signer::ec());
    let jwt = Jwt::open(&section(folder.keys(&[rsa.jwk("r"), ec.jwk("e")]))).unwrap();
    let part = |value: &Value| encode(value.to_string().as_bytes());
    let none = format!("{}.{}.", part(&json!({ "alg": "none" })), part(&claims()));
    // The public key of RS256 as the secret of HS256: what a careless verifier lets pass.
    let public = rsa.jwk("r")["n"].as_str().map(|n| decode(n).unwrap()).unwrap();
    let message = format!("{}.{}", part(&json!({ "alg": "HS256", "kid": "r" })), part(&claims()));
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &public);
    let tag = ring::hmac::sign(&secret, message.as_bytes());
    let confused = format!("{message}.{}", encode(tag.as_ref()));
    let good = ec.token("e", &claims());
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let other =
        format!("{}.{}", signed.split_once('.').unwrap().0, part(&with("sub", json!("eve"))));
    let mut flipped = decode(signature).unwrap();
    flipped[5] ^= 1;
    for (what, token, expected) in [
        ("none", none, Refused::Signature),
        ("HS256 with the public key", confused, Refused::Signature),
        ("another's key under a known id", stranger.token("e", &claims()), Refused::Signature),
        ("a key's id under another algorithm", ec.token("r", &claims()), Refused::Signature),
        ("an unknown id", ec.token("x", &claims()), Refused::Signature),
        ("other claims", format!("{other}.{signature}"), Refused::Signature),
        ("a flipped bit", format!("{signed}.{}", encode(&flipped)), Refused::Signature),
        ("no signature", format!("{signed}."), Refused::Signature),
        ("padding", format!("{good}="), Refused::Malformed),
        ("two parts", signed.to_string(), Refused::Malformed),
        ("nothing", String::new(), Refused::Malformed),
        ("too long", format!("{good}{}", "A".repeat(20_000)), Refused::Malformed),
        (
            "a header that must be understood",
            ec.sign(&json!({ "alg": "ES256", "kid": "e", "crit": ["b64"] }), &claims()),
            Refused::Malformed,
        ),
    ] {
        assert_eq!(jwt.verify(&token, NOW, Instant::now()), Err(expected), "{what}");
    }
    assert!(jwt.verify(&good, NOW, Instant::now()).is_ok());
}

#[test]
fn keys_are_read_again_when_their_file_changes() {
    let folder = Folder::new("jwt-reload");
    let (old, new) = (Signer::ed(), Signer::ec());
    let file = folder.keys(&[old.jwk("old")]);
    let jwt = Jwt::open(&section(file.clone())).unwrap();
    let start = Instant::now();
    let (old_token, new_token) = (old.token("old", &claims()), new.token("new", &claims()));
    assert!(jwt.verify(&new_token, NOW, start + Duration::from_millis(200)).is_err());
    folder.keys(&[new.jwk("new")]);
    // An unknown id makes it look soon, a known one within a second or so.
    assert!(jwt.verify(&new_token, NOW, start + Duration::from_millis(250)).is_err());
    assert!(jwt.verify(&new_token, NOW, start + Duration::from_millis(400)).is_ok());
    assert!(jwt.verify(&old_token, NOW, start + Duration::from_millis(500)).is_err());
    // A file that can't be used leaves the keys that are known.
    std::fs::write(&file, "half a fi").unwrap();
    assert!(jwt.verify(&new_token, NOW, start + Duration::from_secs(9)).is_ok());
    for bad in ["{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"oct","k":"AAAA"}]}"#] {
        std::fs::write(&file, bad).unwrap();
        let message = Jwt::open(&section(file.clone())).err().unwrap().message;
        assert!(message.contains("jwks.json"), "{message}");
    }
}

#[test]
fn r10_a_refused_token_says_why_and_shows_nothing_of_itself() {
    let (folder, key) = (Folder::new("jwt-reasons"), Signer::ed());
    let file = folder.keys(&[key.jwk("k")]);
    let text = format!(
        "[identity]\nsource = \"jwt\"\nissuer = \"{ISSUER}\"\naudience = [\"api\"]\n\
         jwks_file = \"{}\"\n",
        file.display()
    );
    let (identity, _) = identity(&text);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut good = claims();
    (good["exp"], good["aud"]) = (json!(now + 600), json!("api"));
    let but = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        key.token("k", &claims)
    };
    let of = |token: &str| {
        let head = head(&[("authorization", &format!("Bearer {token}"))]);
        identity.judge(&head).map_err(|unknown| unknown.token.unwrap_or_default())
    };
    assert_eq!(of(&key.token("k", &good)).unwrap().tenant, "acme");
    for (token, told) in [
        (but("exp", json!(now - 600)), "expired"),
        (but("aud", json!("other")), "audience"),
        (but("iss", json!("https://else.example")), "issuer"),
        (but("nbf", json!(now + 600)), "not valid yet"),
        (but("tenant", Value::Null), "tenant claim"),
        (but("sub", json!("")), "subject"),
        (Signer::ed().token("k", &good), "signature"),
        ("rubbish".into(), "not readable"),
    ] {
        let reason = of(&token).unwrap_err();
        assert!(reason.contains(told), "{told}: {reason}");
        // RFC 6750, section 3: what may stand in error_description.
        let fits = |byte: u8| matches!(byte, 0x20..=0x21 | 0x23..=0x5b | 0x5d..=0x7e);
        assert!(reason.bytes().all(fits) && !reason.contains(&token), "{reason}");
    }
    let nobody = identity.judge(&head(&[])).unwrap_err();
    assert!(nobody.token.is_none() && nobody.looked_for.contains("Bearer"), "{nobody:?}");
}

fn identity(text: &str) -> (Identity, Arc<Signs>) {
    let config = Config::parse(text, "o.toml", &Flags::default()).unwrap();
    let secret = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let engine = || Engine::new(Arc::new(MemoryStore::new()));
    let secret = secret.block_on(async { Secret::load(None, &engine()).await.unwrap() });
    from_config(&config, &secret).unwrap()
}

#[test]
fn principals_are_found_by_the_hash_of_their_token() {
    let hash = |token: &str| crate::output::hex(&Sha256::digest(token.as_bytes()));
    let text = format!(
        "[identity]\nsource = \"principals\"\n\
         [[principal]]\ntoken_sha256 = \"{}\"\ntenant = \"acme\"\ncaller = \"alice\"\n\
         [[principal]]\ntoken_sha256 = \"{}\"\ntenant = \"acme\"\ncaller = \"bob\"\n",
        hash("token-a"),
        hash("token-b").to_uppercase(),
    );
    let (identity, _) = identity(&text);
    let of = |value: &str| identity.identify(&head(&[("authorization", value)]));
    assert_eq!(of("Bearer token-a").unwrap().caller, "alice");
    assert_eq!(of("bearer token-b").unwrap().caller, "bob");
    for bad in ["Bearer token-c", "Bearer ", "token-a", "Basic token-a", &hash("token-a")] {
        assert_eq!(of(bad), None, "{bad}");
    }
    let twice = head(&[("authorization", "Bearer token-a"), ("authorization", "Bearer token-b")]);
    assert_eq!(identity.identify(&twice), None);
    assert_eq!(identity.identify(&head(&[])), None);
}

#[test]
fn i30_a_jwt_as_static_credential_is_noticed_once_and_refused_under_strict() {
    let token = Signer::ed().token("k", &claims());
    let jwt = head(&[("authorization", &format!("Bearer {token}"))]);
    let (lenient, signs) = identity("");
    assert!(lenient.identify(&head(&[("authorization", "Bearer sk_1")])).is_some());
    assert!(signs.jwt_comes().now_or_never().is_none());
    assert!(lenient.identify(&jwt).is_some());
    assert!(lenient.identify(&jwt).is_some());
    assert!(signs.jwt_comes().now_or_never().unwrap().contains("or strict = true"));
    assert!(signs.jwt_comes().now_or_never().is_none(), "said once");
    let (strict, signs) = identity("[identity]\nstrict = true");
    assert_eq!(strict.identify(&jwt), None);
    let advice = signs.jwt_comes().now_or_never().unwrap();
    assert!(advice.contains("was refused") && !advice.contains("or strict"), "{advice}");
}

#[test]
fn headers_and_single_and_the_reserved_tenant() {
    let text = "[identity]\nsource = \"header\"\ntenant_header = \"x-org\"\n\
                caller_header = \"x-user\"\n";
    let (headers, _) = identity(text);
    let of = |tenant: &str| headers.identify(&head(&[("x-org", tenant), ("x-user", "u")]));
    assert_eq!(of("acme").unwrap().tenant, "acme");
    assert_eq!(of(RESERVED_TENANT), None, "what the server keeps is nobody's");
    let (single, _) = identity("[identity]\nsource = \"single\"");
    assert!(single.identify(&head(&[])).is_some());
}

#[tokio::test]
async fn the_secret_is_made_once_and_shared_by_all_on_one_store() {
    let store = Arc::new(MemoryStore::new());
    let load = || async { Secret::load(None, &Engine::new(store.clone())).await.unwrap() };
    let all = futures_like(load).await;
    assert!(all.iter().all(|secret| *secret == all[0]));
    assert_ne!(all[0].derive("identity"), all[0].derive("leaves"));
    let other = Secret::load(None, &Engine::new(Arc::new(MemoryStore::new()))).await.unwrap();
    assert_ne!(other, all[0]);
    let folder = Folder::new("secret");
    let file = folder.0.join("secret");
    std::fs::write(&file, format!("{}\n", "s".repeat(32))).unwrap();
    let engine = Engine::new(store.clone());
    let of_file = Secret::load(Some(&file), &engine).await.unwrap();
    assert_ne!(of_file, all[0]);
    assert_eq!(format!("{of_file:?}"), "Secret");
    std::fs::write(&file, "too short").unwrap();
    let message = Secret::load(Some(&file), &engine).await.unwrap_err().message;
    assert!(message.contains("9 bytes, at least 32"), "{message}");
}

/// Four at once.
async fn futures_like<F: Future<Output = Secret>>(load: impl Fn() -> F) -> Vec<Secret> {
    let (a, b, c, d) = tokio::join!(load(), load(), load(), load());
    vec![a, b, c, d]
}
