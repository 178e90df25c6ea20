//! Where the table is and how it is talked to.
//!
//! Rule: nothing is read from the environment here; whoever starts the program passes what is
//! needed. Secrets are never shown.

use std::fmt;
use std::time::Duration;

use super::super::StoreError;

/// How long one request may take, unless it is set.
const REQUEST_WITHIN: Duration = Duration::from_secs(3);

/// When audit entries count as settled, unless it is set: DynamoDB refuses a request that was
/// signed a quarter of an hour ago, so nothing can still get in front of an older entry.
const SETTLED_AFTER: Duration = Duration::from_secs(16 * 60);

/// How to reach a table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DynamoDbOptions {
    /// The region, for instance `eu-central-1`.
    pub region: String,
    /// The table's name.
    pub table: String,
    /// Another endpoint than the region's own. Default: none.
    pub endpoint: Option<String>,
    /// Who signs requests. Default: none, which only an endpoint on loopback accepts.
    pub credentials: Option<DynamoDbCredentials>,
    /// How long one request may take before its answer counts as lost. Default: 3 s.
    pub request_timeout: Duration,
    /// How old an audit entry is before it counts as settled. Default: 16 min. Zero, for tests:
    /// at once, which holds only while nothing else writes.
    pub settled_after: Duration,
}

/// An access key.
#[derive(Clone, PartialEq, Eq)]
pub struct DynamoDbCredentials {
    /// The key's id.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: String,
    /// The session token of temporary credentials.
    pub session_token: Option<String>,
}

impl fmt::Debug for DynamoDbCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DynamoDbCredentials({})", self.access_key_id)
    }
}

impl DynamoDbOptions {
    /// A table of a region, reached at the region's own endpoint.
    #[must_use]
    pub fn new(region: &str, table: &str) -> Self {
        Self {
            region: region.into(),
            table: table.into(),
            endpoint: None,
            credentials: None,
            request_timeout: REQUEST_WITHIN,
            settled_after: SETTLED_AFTER,
        }
    }

    /// Reads `dynamodb://REGION/TABLE?endpoint=…`.
    ///
    /// # Errors
    /// When it has another form; the message says which.
    pub fn parse(url: &str) -> Result<Self, StoreError> {
        let bad = |what: &str| {
            let form = "dynamodb://REGION/TABLE or dynamodb://REGION/TABLE?endpoint=URL";
            StoreError::Open(format!("the store's URL {what}; it is {form}"))
        };
        let rest = url.strip_prefix("dynamodb://").ok_or_else(|| bad("has another scheme"))?;
        let (place, query) = rest.split_once('?').map_or((rest, None), |(p, q)| (p, Some(q)));
        let (region, table) = place.split_once('/').ok_or_else(|| bad("names no table"))?;
        if !is_name(region, 2) {
            return Err(bad("names no region"));
        }
        // DynamoDB's own rule for names.
        if !is_name(table, 3) {
            return Err(bad("names a table that can't be: 3 to 255 letters, digits, _ - ."));
        }
        let mut options = Self::new(region, table);
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            match pair.split_once('=') {
                Some(("endpoint", endpoint)) => {
                    options.endpoint = Some(endpoint_url(endpoint).ok_or_else(|| {
                        bad("has an endpoint that is neither http:// nor https://")
                    })?);
                }
                _ => return Err(bad("has a parameter that is not `endpoint`")),
            }
        }
        Ok(options)
    }

    /// The URL, as it may be shown.
    #[must_use]
    pub fn shown(&self) -> String {
        let Self { region, table, .. } = self;
        match &self.endpoint {
            Some(endpoint) => format!("dynamodb://{region}/{table}?endpoint={endpoint}"),
            None => format!("dynamodb://{region}/{table}"),
        }
    }

    /// Whether requests stay on this machine.
    pub(super) fn is_local(&self) -> bool {
        let Some(endpoint) = &self.endpoint else { return false };
        let Some((_, rest)) = endpoint.split_once("://") else { return false };
        let host = rest.split(['/', '?']).next().unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        matches!(host, "localhost" | "[::1]") || host.starts_with("127.")
    }
}

fn is_name(text: &str, least: usize) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    (least..=255).contains(&text.len()) && text.bytes().all(allowed)
}

/// The endpoint, written plainly or percent-encoded.
fn endpoint_url(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    let url = String::from_utf8(out).ok()?;
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"))?;
    (!host.is_empty() && !host.contains('@')).then(|| url.trim_end_matches('/').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_shown() {
        let plain = DynamoDbOptions::parse("dynamodb://eu-central-1/onceward").unwrap();
        assert_eq!((plain.region.as_str(), plain.table.as_str()), ("eu-central-1", "onceward"));
        assert_eq!((plain.endpoint.as_ref(), plain.is_local()), (None, false));
        for url in [
            "dynamodb://r1/a.b-c_d?endpoint=http://127.0.0.1:8000/",
            "dynamodb://r1/a.b-c_d?endpoint=http%3A%2F%2F127.0.0.1%3A8000",
        ] {
            let local = DynamoDbOptions::parse(url).unwrap();
            assert!(local.is_local(), "{url}");
            let shown = "dynamodb://r1/a.b-c_d?endpoint=http://127.0.0.1:8000";
            assert_eq!(local.shown(), shown);
        }
        let far = DynamoDbOptions::parse("dynamodb://r1/abc?endpoint=https://127.evil.example");
        assert!(DynamoDbOptions::parse("dynamodb://r1/abc?endpoint=https://h").is_ok());
        assert!(far.is_ok_and(|far| far.endpoint.is_some()));
    }

    #[test]
    fn other_forms_are_refused_and_the_message_says_which_is_right() {
        for url in [
            "dynamodb:",
            "dynamodb://",
            "dynamodb://eu-central-1",
            "dynamodb://eu-central-1/",
            "dynamodb:///table",
            "dynamodb://eu-central-1/a/b",
            "dynamodb://eu-central-1/table?endpoint=",
            "dynamodb://eu-central-1/table?endpoint=ftp://h",
            "dynamodb://eu-central-1/table?endpoint=http://user:secret@h",
            "dynamodb://eu-central-1/table?region=x",
            "dynamodb://eu central/table",
            "postgres://h/d",
        ] {
            let error = DynamoDbOptions::parse(url).unwrap_err().to_string();
            assert!(error.contains("dynamodb://REGION/TABLE"), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let mut options = DynamoDbOptions::new("eu-central-1", "onceward");
        options.credentials = Some(DynamoDbCredentials {
            access_key_id: "AKID".into(),
            secret_access_key: "hush".into(),
            session_token: Some("hush too".into()),
        });
        let shown = format!("{options:?} {}", options.shown());
        assert!(shown.contains("AKID") && !shown.contains("hush"), "{shown}");
    }
}
