//! TLS of the listener: certificate and key from PEM files, read once at the start.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::settings::TlsFiles;
use crate::failure::Failure;

/// What accepts TLS connections, for HTTP/2 and HTTP/1.1.
pub(super) fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, Failure> {
    let (cert, key) = (files.cert.display(), files.key.display());
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        Failure::usage("tls.files", format!("{what}: {error}"))
    };
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect);
    let chain = chain.map_err(|error| failed(&format!("tls_cert {cert}"), &error))?;
    if chain.is_empty() {
        let message = format!("tls_cert {cert} holds no certificate; it takes a PEM file");
        return Err(Failure::usage("tls.files", message));
    }
    let private = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| failed(&format!("tls_key {key}"), &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed("TLS", &error))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| failed(&format!("tls_cert {cert} with tls_key {key}"), &error))?;
    config.alpn_protocols = vec![b"h2".into(), b"http/1.1".into()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
