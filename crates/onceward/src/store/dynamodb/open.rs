//! Opening: the client, and a look at the table before anything is done.
//!
//! Rule: a table that is missing, older or newer than this program needs is refused with what to do
//! about it. Requests are bounded in time, and the client tries nothing again by itself.

use std::sync::Arc;
use std::time::Duration;

use aws_credential_types::Credentials;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::config::{BehaviorVersion, Builder, Config, Region};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};

use super::super::StoreError;
use super::super::clock::StoreClock;
use super::dates::{DateReader, Dates};
use super::failure::Failure;
use super::migrate;
use super::options::{DynamoDbCredentials, DynamoDbOptions};
use super::table::Table;

/// How long it may take to reach the endpoint.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// The table that options name, or that a caller's own client reaches.
pub(super) fn table(
    options: &DynamoDbOptions,
    client: Option<&Client>,
    clock: Option<StoreClock>,
) -> Result<Table, StoreError> {
    let dates = Arc::new(Dates::new(clock, options.request_timeout));
    let builder = match client {
        Some(client) => client.config().to_builder(),
        None => configured(options)?,
    };
    let time_outs = TimeoutConfig::builder()
        .connect_timeout(CONNECT_WITHIN.min(options.request_timeout))
        .operation_timeout(options.request_timeout)
        .build();
    let config = builder
        .retry_config(RetryConfig::disabled())
        .timeout_config(time_outs)
        .interceptor(DateReader(dates.clone()))
        .build();
    Ok(Table::new(Client::from_conf(config), options.table.clone(), dates))
}

fn configured(options: &DynamoDbOptions) -> Result<Builder, StoreError> {
    let credentials = match &options.credentials {
        Some(credentials) => credentials.clone(),
        None if options.is_local() => DynamoDbCredentials {
            access_key_id: "local".into(),
            secret_access_key: "local".into(),
            session_token: None,
        },
        None => {
            let message = "DynamoDB needs credentials: an access key's id and secret \
                           (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with AWS_SESSION_TOKEN \
                           for temporary ones); without, only an endpoint on loopback is used";
            return Err(StoreError::Open(message.into()));
        }
    };
    let DynamoDbCredentials { access_key_id, secret_access_key, session_token } = credentials;
    let credentials =
        Credentials::new(access_key_id, secret_access_key, session_token, None, "onceward");
    let http = aws_smithy_http_client::Builder::new();
    let http = match options.endpoint.as_deref().is_some_and(|url| url.starts_with("http://")) {
        // Reading the system's certificates takes a while; nothing would use them.
        true => http.build_http(),
        false => http.tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https(),
    };
    let builder = Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new(options.region.clone()))
        .credentials_provider(credentials)
        .http_client(http);
    Ok(match &options.endpoint {
        Some(endpoint) => builder.endpoint_url(endpoint),
        None => builder,
    })
}

/// Whether the table is what this program needs.
pub(super) async fn check(table: &Table) -> Result<(), StoreError> {
    let how = format!("`onceward migrate --store dynamodb://REGION/{}` makes it", table.name);
    match migrate::version(table).await {
        Ok(Some(migrate::VERSION)) => Ok(()),
        Ok(Some(newer)) if newer > migrate::VERSION => Err(StoreError::Schema(format!(
            "the table {} is at version {newer}, and this program knows up to {}; use the \
             program's newer version",
            table.name,
            migrate::VERSION
        ))),
        Ok(_) => Err(StoreError::Schema(format!(
            "the table {} was not made, or not brought up to date; {how}",
            table.name
        ))),
        Err(Failure::Store(StoreError::Schema(_))) => {
            Err(StoreError::Schema(format!("there is no table {}; {how}", table.name)))
        }
        Err(failure) => Err(StoreError::Open(format!(
            "can't open the table {}: {}",
            table.name,
            failure.of_read()
        ))),
    }
}
