//! What a registry demands of a client: a password, or a token of its authorization service.
//!
//! Invariant: the service is reached by https when the registry is. Tokens live as long as this process.
//! Failure: [`RegistryError`]; a demand of another kind is as a refusal.

use http_auth::{ChallengeRef, parse_challenges};
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use serde::Deserialize;
use tokio::time::Instant;

use super::{ANSWER, Call, IDLE, Registry, RegistryError, Reply, is_passing};
use crate::commands::publish::credentials::{Credentials, secret};

/// Name of this program for authorization services.
const CLIENT: &str = "vmletctl";

/// Where tokens come from.
#[derive(Debug, PartialEq, Eq)]
struct TokenService {
    realm: Url,
    service: String,
}

#[derive(Debug, PartialEq, Eq)]
enum Demand {
    Password,
    Token(TokenService),
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

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
        if self.base.scheme() == "https" && service.realm.scheme() != "https" {
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
        let token = serde_json::from_slice::<Token>(&reply.body).ok();
        let token = token.and_then(|reply| reply.token.or(reply.access_token));
        let value = token.and_then(|token| secret(&format!("Bearer {token}")));
        value.ok_or_else(|| RegistryError::Protocol(self.host.clone()))
    }

    fn token_call(&self, service: &TokenService) -> Call {
        let scope = format!("repository:{}:pull,push", self.repository);
        let mut url = service.realm.clone();
        let mut call = Call {
            method: Method::GET,
            url: service.realm.clone(),
            headers: HeaderMap::new(),
            body: bytes::Bytes::new(),
            time: ANSWER,
        };
        if let Some(Credentials::Identity(identity)) = &self.credentials {
            url.set_query(None);
            url.query_pairs_mut()
                .append_pair("grant_type", "refresh_token")
                .append_pair("client_id", CLIENT)
                .append_pair("service", &service.service)
                .append_pair("scope", &scope)
                .append_pair("refresh_token", identity);
            call.method = Method::POST;
            call.body = url.query().unwrap_or_default().to_owned().into();
            let form = HeaderValue::from_static("application/x-www-form-urlencoded");
            call.headers.insert(header::CONTENT_TYPE, form);
            return call;
        }
        url.query_pairs_mut()
            .append_pair("service", &service.service)
            .append_pair("scope", &scope);
        call.url = url;
        if let Some(basic) = self.credentials.as_ref().and_then(Credentials::basic) {
            call.headers.insert(header::AUTHORIZATION, basic);
        }
        call
    }
}

/// What the headers of a refusal demand; a token before a password.
fn demand(headers: &HeaderMap) -> Option<Demand> {
    let values = headers.get_all(header::WWW_AUTHENTICATE).iter();
    let texts = values.filter_map(|value| value.to_str().ok());
    let challenges = texts
        .filter_map(|text| parse_challenges(text).ok())
        .flatten();
    let mut demands: Vec<_> = challenges.filter_map(|challenge| one(&challenge)).collect();
    demands.sort_by_key(|demand| *demand == Demand::Password);
    demands.into_iter().next()
}

fn one(challenge: &ChallengeRef<'_>) -> Option<Demand> {
    let parameter = |name: &str| {
        let mut all = challenge.params.iter();
        let found = all.find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.to_unescaped())
    };
    if challenge.scheme.eq_ignore_ascii_case("basic") {
        return Some(Demand::Password);
    }
    if !challenge.scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let realm = Url::parse(&parameter("realm")?).ok()?;
    let is_web = matches!(realm.scheme(), "http" | "https");
    is_web.then(|| {
        Demand::Token(TokenService {
            realm,
            service: parameter("service").unwrap_or_default(),
        })
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn demanded(value: &str) -> Option<Demand> {
        let mut headers = HeaderMap::new();
        headers.insert(header::WWW_AUTHENTICATE, value.parse().unwrap());
        demand(&headers)
    }

    #[rstest]
    #[case::basic("Basic realm=\"r\"", true)]
    #[case::unknown("Negotiate", false)]
    #[case::broken("Basic realm=\"", false)]
    #[case::no_realm("Bearer service=\"s\"", false)]
    #[case::file("Bearer realm=\"file:///etc/shadow\"", false)]
    fn a_password_is_demanded_or_nothing_that_can_be_given(
        #[case] value: &str,
        #[case] basic: bool,
    ) {
        assert_eq!(demanded(value), basic.then_some(Demand::Password));
    }

    #[test]
    fn a_token_precedes_a_password() {
        let both =
            r#"Basic realm="r", Bearer realm="https://auth.example/token",service="r.example""#;
        let Some(Demand::Token(service)) = demanded(both) else {
            panic!("no service");
        };
        assert_eq!(service.realm.as_str(), "https://auth.example/token");
        assert_eq!(service.service, "r.example");
    }
}
