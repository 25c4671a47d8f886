//! What a registry demands of a client: a password, or a token of its authorization service.
//!
//! Invariant: the service is reached by https when the registry is. Tokens live as long as this process.
//! Failure: [`RegistryError`]; a demand of another kind is as a refusal.

use registry_auth::{Demand, TokenService, demand, token_in};
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode};
use tokio::time::Instant;

use super::{ANSWER, Call, IDLE, Registry, RegistryError, Reply, is_passing};
use crate::commands::publish::credentials::Credentials;

/// Name of this program for authorization services.
const CLIENT: &str = "vmletctl";

impl Registry {
    /// The authorization that a refusal demands.
    pub(super) async fn demanded(&self, refusal: &Reply) -> Result<HeaderValue, RegistryError> {
        match demand(&refusal.headers) {
            Some(Demand::Token(service)) => self.token(&service).await,
            Some(Demand::Password) => {
                let password = self.credentials.as_ref().and_then(Credentials::basic);
                password.ok_or_else(|| self.unauthorized())
            }
            None => Err(self.unauthorized()),
        }
    }

    async fn token(&self, service: &TokenService) -> Result<HeaderValue, RegistryError> {
        if self.base.scheme() == "https" && service.is_plain() {
            return Err(RegistryError::Unencrypted(self.host.clone()));
        }
        let call = self.token_call(service);
        let begin = Instant::now();
        let reply = loop {
            // The headers of the call are all that the service gets.
            let reply = self.exchange(&call, None).await?;
            // A token lives for minutes, and an upload for hours: the service may be busy once.
            if !is_passing(reply.status) || begin.elapsed() >= IDLE {
                break reply;
            }
            tokio::time::sleep(self.pause).await;
        };
        match reply.status {
            StatusCode::OK => {}
            // A service that does not know the user.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST => {
                return Err(self.unauthorized());
            }
            _ => return Err(self.refused("give a token", &reply)),
        }
        token_in(&reply.body).ok_or_else(|| RegistryError::Protocol(self.host.clone()))
    }

    fn token_call(&self, service: &TokenService) -> Call {
        let scope = format!("repository:{}:pull,push", self.repository);
        let mut call = Call {
            method: Method::GET,
            url: service.realm.clone(),
            headers: HeaderMap::new(),
            body: bytes::Bytes::new(),
            time: ANSWER,
        };
        if let Some(Credentials::Identity(identity)) = &self.credentials {
            call.method = Method::POST;
            call.body = service.exchange(CLIENT, &scope, identity).into();
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            call.headers.insert(header::CONTENT_TYPE, form);
            return call;
        }
        call.url = service.request(&scope);
        if let Some(basic) = self.credentials.as_ref().and_then(Credentials::basic) {
            call.headers.insert(header::AUTHORIZATION, basic);
        }
        call
    }
}
