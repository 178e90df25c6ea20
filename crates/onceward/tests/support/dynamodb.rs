//! How the test kit opens DynamoDB stores: each in a table of its own, on a clock that tests move.
//!
//! Runs only against the server that `ONCEWARD_TEST_DYNAMODB_URL` names, and fails without it. The
//! server collects garbage by its own date, which is not the tests', so it is told not to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use onceward::core::key::Key;
use onceward::store::clock::{ManualClock, StoreClock};
use onceward::store::dynamodb::{DynamoDbOptions, DynamoDbStore};
use onceward::store::{Store, StoreError, StoreFuture};
use onceward::testing::harness::{Damage, Harness, START};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Mutex;

/// Opens DynamoDB stores.
#[derive(Default)]
pub(crate) struct DynamoDbHarness {
    opened: Mutex<Option<Place>>,
}

/// One table, the store in it and the hand of its clock.
struct Place {
    options: DynamoDbOptions,
    store: Arc<DynamoDbStore>,
    clock: StoreClock,
    hand: ManualClock,
}

static TABLES: AtomicU64 = AtomicU64::new(0);

/// Where the server is.
pub(crate) fn endpoint() -> String {
    std::env::var("ONCEWARD_TEST_DYNAMODB_URL").unwrap_or_else(|_| {
        panic!(
            "ONCEWARD_TEST_DYNAMODB_URL is not set: these tests need a DynamoDB server, for \
             instance http://127.0.0.1:8000; `cargo xtask services up dynamodb` starts one"
        )
    })
}

/// A table that nobody else uses.
pub(crate) fn own_table() -> DynamoDbOptions {
    let number = TABLES.fetch_add(1, Ordering::SeqCst);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let mut options =
        DynamoDbOptions::new("eu-central-1", &format!("kit-{}-{now}-{number}", std::process::id()));
    options.endpoint = Some(endpoint());
    // A test has nothing under way when it lists what is settled.
    options.settled_after = Duration::ZERO;
    // The machine may be busy with other tests; an answer that is late is not lost for that.
    options.request_timeout = Duration::from_secs(20);
    options
}

/// Sends a request that the store has no method for.
pub(crate) async fn request(target: &str, body: String) -> Result<String, StoreError> {
    let rest = endpoint();
    let authority = rest.trim_start_matches("http://").trim_end_matches('/').to_string();
    let failed = |error: std::io::Error| StoreError::NotApplied(error.to_string());
    let mut stream = tokio::net::TcpStream::connect(&authority).await.map_err(failed)?;
    let head = format!(
        "POST / HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\
         Content-Type: application/x-amz-json-1.0\r\nX-Amz-Target: DynamoDB_20120810.{target}\r\n\
         X-Amz-Date: 20260101T000000Z\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential=local/20260101/eu-central-1/dynamodb/\
         aws4_request, SignedHeaders=host, Signature=00\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(failed)?;
    assert!(answer.starts_with("HTTP/1.1 200"), "{target} {body}: {answer}");
    Ok(answer)
}

impl Place {
    async fn new() -> Result<Self, StoreError> {
        let options = own_table();
        DynamoDbStore::migrate(&options).await?;
        let keep = format!(
            r#"{{"TableName":"{}","TimeToLiveSpecification":
            {{"AttributeName":"ttl","Enabled":false}}}}"#,
            options.table
        );
        request("UpdateTimeToLive", keep).await?;
        let (clock, hand) = StoreClock::manual(START);
        let store = DynamoDbStore::connect_with_clock(&options, clock.clone()).await?;
        Ok(Self { options, store: Arc::new(store), clock, hand })
    }

    /// The request that changes something of a record's item behind the store's back.
    fn change(&self, key: &Key, update: &str, names: &str, values: &str) -> String {
        let pk = format!("ORG#{}#{}", key.tenant_column(), key.kind().as_str().to_uppercase());
        let sk = format!("IDEMP#{}", key.name_column());
        format!(
            r#"{{"TableName":"{}","Key":{{"PK":{{"S":"{pk}"}},"SK":{{"S":"{sk}"}}}},
            "UpdateExpression":"{update}","ConditionExpression":"attribute_exists(PK)",
            "ExpressionAttributeNames":{names},"ExpressionAttributeValues":{values}}}"#,
            self.options.table
        )
    }
}

impl Drop for Place {
    /// Removes the table, from a thread and a runtime of its own: a test's may be at its end.
    fn drop(&mut self) {
        let body = format!(r#"{{"TableName":"{}"}}"#, self.options.table);
        let remove = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| runtime.block_on(request("DeleteTable", body)))
        });
        // What can't be removed is left in the test server, under the kit's name.
        let _ = remove.join();
    }
}

impl Harness for DynamoDbHarness {
    fn open(&self) -> StoreFuture<'_, Arc<dyn Store>> {
        Box::pin(async move {
            let place = Place::new().await?;
            let store = place.store.clone();
            *self.opened.lock().await = Some(place);
            Ok(store as Arc<dyn Store>)
        })
    }

    fn reopen(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async move {
            let mut opened = self.opened.lock().await;
            let place = opened.as_mut().unwrap();
            place.store.close().await?;
            let clock = place.clock.clone();
            let store = DynamoDbStore::connect_with_clock(&place.options, clock).await?;
            place.store = Arc::new(store);
            Ok(Some(place.store.clone() as Arc<dyn Store>))
        })
    }

    fn advance(&self, ms: u64) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            self.opened.lock().await.as_ref().unwrap().hand.advance(ms);
            Ok(true)
        })
    }

    fn damage(&self, what: Damage) -> StoreFuture<'_, bool> {
        Box::pin(async move {
            let opened = self.opened.lock().await;
            let place = opened.as_ref().unwrap();
            let change = match &what {
                // "damaged", in the place of what was there.
                Damage::Outcome(key) => place.change(
                    key,
                    "SET #a = :a",
                    r##"{"#a":"outcome"}"##,
                    r#"{":a":{"B":"ZGFtYWdlZA=="}}"#,
                ),
                Damage::Record(key) => {
                    place.change(key, "ADD #a :a", r##"{"#a":"attempt"}"##, r#"{":a":{"N":"1"}}"#)
                }
            };
            request("UpdateItem", change).await?;
            Ok(true)
        })
    }
}
