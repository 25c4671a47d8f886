//! A web server with TLS inside a stack, which requires a certificate of its clients.
//!
//! Invariant: a client without a certificate of [`Authority::for_client`] gets no byte of the file.
//! Failure: a client that is refused ends its thread; the end of the server ends all.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;

use anyhow::{Context, Result};
use nix::sys::socket::{Shutdown, shutdown};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

use crate::stack::Stack;

/// An authority that issues the certificates of both sides.
#[derive(Debug)]
pub struct Authority {
    pem: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one. No client trusts it unless it has the Secret of [`Authority::for_client`].
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate()?;
        let cert = params.self_signed(&key)?;
        Ok(Self {
            pem: cert.pem(),
            der: cert.der().clone(),
            issuer: Issuer::new(params, key),
        })
    }

    /// What a client needs, as the Secret of an image.
    pub fn for_client(&self, secret: &str) -> Result<Value> {
        let (cert, key) = self.issue("node")?;
        Ok(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": secret },
            "stringData": {
                "ca.crt": self.pem,
                "tls.crt": cert.pem(),
                "tls.key": key.serialize_pem(),
            },
        }))
    }

    /// Its own certificate, and certificate and key of a server on loopback.
    pub fn for_server(&self) -> Result<[String; 3]> {
        let (cert, key) = self.issue("127.0.0.1")?;
        Ok([self.pem.clone(), cert.pem(), key.serialize_pem()])
    }

    fn issue(&self, name: &str) -> Result<(rcgen::Certificate, KeyPair)> {
        let key = KeyPair::generate()?;
        let params = CertificateParams::new(vec![name.to_owned()])?;
        Ok((params.signed_by(&key, &self.issuer)?, key))
    }

    fn settings(&self) -> Result<ServerConfig> {
        // Fails only when there is one already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (cert, key) = self.issue("127.0.0.1")?;
        let mut roots = RootCertStore::empty();
        roots.add(self.der.clone())?;
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build()?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let settings = ServerConfig::builder().with_client_cert_verifier(verifier);
        Ok(settings.with_single_cert(vec![cert.der().clone()], key)?)
    }
}

/// The server; dropping it ends it.
#[derive(Debug)]
pub struct SecureServer {
    address: SocketAddr,
    listener: Arc<TcpListener>,
}

impl SecureServer {
    /// Serves `body` under every path, on loopback in the network namespace of the stack.
    pub fn start(stack: &Stack, authority: &Authority, body: Vec<u8>) -> Result<Self> {
        let listener = Arc::new(stack.listen()?);
        let address = listener.local_addr()?;
        let settings = Arc::new(authority.settings().context("the server's certificates")?);
        let accepting = Arc::clone(&listener);
        let body = Arc::new(body);
        std::thread::spawn(move || {
            for stream in accepting.incoming() {
                let Ok(stream) = stream else { return };
                let settings = Arc::clone(&settings);
                let body = Arc::clone(&body);
                // A client that is refused, or disconnects, ends its thread.
                std::thread::spawn(move || answer(stream, settings, &body));
            }
        });
        Ok(Self { address, listener })
    }

    /// `host:port`.
    pub fn authority(&self) -> String {
        self.address.to_string()
    }
}

impl Drop for SecureServer {
    fn drop(&mut self) {
        // The thread that accepts ends; there is nothing else to do about a failure.
        let _ = shutdown(self.listener.as_raw_fd(), Shutdown::Both);
    }
}

fn answer(stream: TcpStream, settings: Arc<ServerConfig>, body: &[u8]) -> Result<()> {
    let connection = ServerConnection::new(settings)?;
    let mut stream = BufReader::new(StreamOwned::new(connection, stream));
    loop {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if line.trim_end().is_empty() {
            break;
        }
    }
    let stream = stream.get_mut();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(body)?;
    stream.conn.send_close_notify();
    Ok(stream.flush()?)
}
