//! TLS without verification of the certificate.
//!
//! A backend's certificate is for the name that its clients use, or there is none that fits. The check only
//! asks whether the backend serves, and sends no secrets. Kubernetes' HTTPS probes do not verify either.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

static CONNECTOR: LazyLock<TlsConnector> = LazyLock::new(|| {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring has cipher suites of TLS 1.2 and 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    // A resumed session would hide that full handshakes fail.
    config.resumption = tokio_rustls::rustls::client::Resumption::disabled();
    TlsConnector::from(Arc::new(config))
});

/// Makes the TLS handshake. A host that is a name is sent in it (SNI).
pub(super) async fn handshake(
    stream: TcpStream,
    host: Option<&str>,
    peer: IpAddr,
) -> io::Result<TlsStream<TcpStream>> {
    let name = host.and_then(|host| ServerName::try_from(without_port(host).to_owned()).ok());
    let name = name.unwrap_or_else(|| ServerName::from(peer));
    CONNECTOR.connect(name, stream).await
}

/// Removes the port from `name:port`.
fn without_port(host: &str) -> &str {
    host.split_once(':').map_or(host, |(name, _)| name)
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
