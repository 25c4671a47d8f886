//! The encryption of a transport profile.
//!
//! Invariant: chains are verified by the authorities of all downloads and those of the profile,
//! unless the profile accepts any certificate; signatures of the handshake are always verified.
//! Failure: a sentence about the profile.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::super::transport::{Tls, Trust};
use super::Clients;

/// Verifies servers as a profile specifies.
#[derive(Debug)]
struct Verifier {
    /// How chains are verified, and for which name; `None`: any certificate is accepted.
    chain: Option<(Arc<dyn ServerCertVerifier>, ServerName<'static>)>,
    provider: Arc<CryptoProvider>,
}

/// What a client of this profile does. Blocks.
pub(super) fn config(clients: &Clients, tls: &Tls) -> Result<ClientConfig, String> {
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.ok_or("there is no cryptography")?;
    let own = |chain| Verifier {
        chain,
        provider: Arc::clone(&provider),
    };
    let verifier: Arc<dyn ServerCertVerifier> = match &tls.trust {
        Trust::Host => usual(clients, tls, &provider)?,
        Trust::Name(name) => {
            let usual = usual(clients, tls, &provider)?;
            Arc::new(own(Some((usual, name.clone()))))
        }
        Trust::Anyone => Arc::new(own(None)),
    };
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|e| format!("the client certificate and its key are not usable: {e}"))?,
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn usual(
    clients: &Clients,
    tls: &Tls,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let authorities = clients.own.iter().chain(&tls.authorities).cloned();
    if clients.system {
        let verifier = rustls_platform_verifier::Verifier::new_with_extra_roots(
            authorities,
            Arc::clone(provider),
        );
        return Ok(Arc::new(verifier.map_err(|e| e.to_string())?));
    }
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority).map_err(|e| e.to_string())?;
    }
    if roots.is_empty() {
        return Err("neither the system nor the transport has a certificate authority".to_owned());
    }
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build();
    Ok(verifier.map_err(|e| e.to_string())?)
}

impl Verifier {
    fn algorithms(&self) -> &WebPkiSupportedAlgorithms {
        &self.provider.signature_verification_algorithms
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.chain {
            None => Ok(ServerCertVerified::assertion()),
            Some((usual, name)) => {
                usual.verify_server_cert(end_entity, intermediates, name, ocsp_response, now)
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, self.algorithms())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, self.algorithms())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms().supported_schemes()
    }
}
