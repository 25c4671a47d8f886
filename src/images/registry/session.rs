//! Requests to one server of a registry, with what it demands for them.
//!
//! Invariant: credentials go to the registry they are for, and to the authorization service that it
//! names, never over http unless the registry itself is reached over http. Tokens live as long as
//! the session, which is one pull.
//! Failure: as of a download; 401 and 403 stay what they are.

use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_auth::parse_challenges;
use reqwest::Url;
use serde::Deserialize;

use super::super::digest::Digest;
use super::super::download::{Call, Downloader, Small, Target};
use super::super::error::{Error, Result};
use super::super::translate::{Source, location};
use super::super::unpack::Shape;
use super::Wanted;
use super::credentials::{Credentials, secret};
use super::hosts::Endpoint;
use super::manifest::Blob;
use super::place::Place;

/// Longest reply of an authorization service: tokens are a few KiB.
const TOKEN: usize = 256 << 10;
/// Name of this program for authorization services.
const CLIENT: &str = "vmlet";

/// One server, for one image.
#[derive(Debug)]
pub(super) struct Session<'a> {
    downloader: &'a Downloader,
    endpoint: &'a Endpoint,
    place: &'a Place,
    credentials: Option<&'a Credentials>,
    authorization: Option<HeaderValue>,
}

/// Where an authorization service is, and for what.
#[derive(Debug, PartialEq, Eq)]
struct Service {
    realm: Url,
    service: Option<String>,
    scope: String,
}

/// What a server demands.
#[derive(Debug, PartialEq, Eq)]
enum Demand {
    Basic,
    Token(Service),
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        downloader: &'a Downloader,
        endpoint: &'a Endpoint,
        wanted: Wanted<'a>,
    ) -> Self {
        let Wanted { place, credentials } = wanted;
        // A mirror gets those that name it, and no others.
        let named = |given: &&Credentials| match endpoint.is_registry {
            true => given.are_for(place.host()),
            false => !given.server_address.is_empty() && given.are_for(authority(&endpoint.base)),
        };
        let credentials = credentials.filter(named);
        let token = credentials.map(|given| given.registry_token.as_str());
        let token = token.filter(|token| !token.is_empty());
        Self {
            downloader,
            endpoint,
            place,
            credentials,
            authorization: token.and_then(|token| secret(&format!("Bearer {token}"))),
        }
    }

    /// The reply to a request for `path` below the repository, authorized where that is demanded.
    pub(super) async fn get(
        &mut self,
        path: &str,
        headers: HeaderMap,
        limit: usize,
    ) -> Result<Vec<u8>> {
        let target = self.target(path)?;
        let call = Call {
            headers,
            form: None,
            limit,
        };
        let mut reply = self.downloader.call(&target, &call).await?;
        if reply.status == StatusCode::UNAUTHORIZED {
            self.authorize(&target, &reply).await?;
            reply = self.downloader.call(&self.target(path)?, &call).await?;
        }
        match reply.status {
            StatusCode::OK => Ok(reply.body),
            status => Err(refused(&target, status)),
        }
    }

    /// What the server gave for the requests so far.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        self.authorization.clone()
    }

    /// Takes up the authorization of an earlier session with the same server.
    pub(super) fn resume(&mut self, authorization: Option<HeaderValue>) {
        self.authorization = authorization;
    }

    /// Where a blob is; with the authorization of earlier requests.
    pub(super) fn blob(&self, blob: &Blob) -> Result<Target> {
        Ok(Target {
            is_disk: blob.shape == Shape::Disk,
            ..self.target(&blob_path(blob.digest))?
        })
    }

    /// Gets a new authorization for a blob: an earlier one may have ended.
    pub(super) async fn authorize_blob(&mut self, blob: &Blob) -> Result<()> {
        self.authorization = None;
        let target = self.blob(blob)?;
        let mut headers = HeaderMap::new();
        headers.insert(header::RANGE, HeaderValue::from_static("bytes=0-0"));
        let call = Call {
            headers,
            form: None,
            limit: TOKEN,
        };
        // A server that knows no ranges sends more than such a reply may have: it demands nothing.
        match self.downloader.call(&target, &call).await {
            Ok(reply) if reply.status == StatusCode::UNAUTHORIZED => {
                self.authorize(&target, &reply).await
            }
            Ok(_) | Err(Error::Reply { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn target(&self, path: &str) -> Result<Target> {
        let repository = self.place.repository();
        let url = self.endpoint.base.join(&format!("{repository}/{path}"));
        let mut url = url.map_err(|_| self.content("its name makes no URL"))?;
        let registry = self.place.host();
        if !self.endpoint.is_registry && authority(&url) != registry {
            url.query_pairs_mut().append_pair("ns", registry);
        }
        let mut headers = self.endpoint.headers.clone();
        if let Some(authorization) = &self.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        Ok(Target {
            source: Source::of(url),
            timeout: None,
            client: self.endpoint.client.clone(),
            headers,
            is_disk: false,
        })
    }

    /// Meets what the server demands in its refusal.
    async fn authorize(&mut self, target: &Target, refusal: &Small) -> Result<()> {
        let unauthorized = || refused(target, StatusCode::UNAUTHORIZED);
        let scope = format!("repository:{}:pull", self.place.repository());
        let demand = demand(&refusal.headers, &scope).ok_or_else(unauthorized)?;
        self.authorization = match demand {
            Demand::Basic => {
                let basic = self.credentials.and_then(Credentials::basic);
                Some(basic.ok_or_else(unauthorized)?)
            }
            Demand::Token(service) => Some(self.token(&service).await?),
        };
        Ok(())
    }

    async fn token(&self, service: &Service) -> Result<HeaderValue> {
        let encrypted = self.endpoint.base.scheme() == "https";
        if encrypted && service.realm.scheme() != "https" {
            return Err(self.content("its authorization service has no encryption"));
        }
        let identity = self.credentials.map(|given| given.identity_token.as_str());
        let identity = identity.filter(|token| !token.is_empty());
        let mut headers = HeaderMap::new();
        let mut url = service.realm.clone();
        let form = identity.map(|token| service.exchange(token));
        if form.is_none() {
            service.query(&mut url);
            if let Some(basic) = self.credentials.and_then(Credentials::basic) {
                headers.insert(header::AUTHORIZATION, basic);
            }
        }
        let target = Target {
            source: Source::of(url),
            timeout: None,
            client: self.endpoint.client.clone(),
            headers: HeaderMap::new(),
            is_disk: false,
        };
        let call = Call {
            headers,
            form: form.as_deref(),
            limit: TOKEN,
        };
        let reply = self.downloader.call(&target, &call).await?;
        if reply.status != StatusCode::OK {
            return Err(refused(&target, reply.status));
        }
        let token = serde_json::from_slice::<Token>(&reply.body).ok();
        let token = token.and_then(|reply| reply.token.or(reply.access_token));
        let value = token.and_then(|token| secret(&format!("Bearer {token}")));
        value.ok_or_else(|| self.content("its authorization service sent no token"))
    }

    fn content(&self, reason: &str) -> Error {
        Error::Content {
            location: self.place.to_string(),
            reason: reason.to_owned(),
        }
    }
}

impl Service {
    fn query(&self, url: &mut Url) {
        let mut query = url.query_pairs_mut();
        if let Some(service) = &self.service {
            query.append_pair("service", service);
        }
        query.append_pair("scope", &self.scope);
    }

    /// The form that exchanges an identity token for one of the registry.
    fn exchange(&self, identity: &str) -> String {
        let mut form = self.realm.clone();
        form.set_query(None);
        form.query_pairs_mut()
            .append_pair("grant_type", "refresh_token")
            .append_pair("client_id", CLIENT)
            .append_pair("service", self.service.as_deref().unwrap_or_default())
            .append_pair("scope", &self.scope)
            .append_pair("refresh_token", identity);
        form.query().unwrap_or_default().to_owned()
    }
}

/// What the headers of a refusal demand. `scope` is for servers that name none.
fn demand(headers: &HeaderMap, scope: &str) -> Option<Demand> {
    let mut basic = None;
    for value in headers.get_all(header::WWW_AUTHENTICATE) {
        let challenges = value.to_str().ok().and_then(|v| parse_challenges(v).ok());
        for challenge in challenges.unwrap_or_default() {
            let parameter = |name: &str| {
                let found = challenge
                    .params
                    .iter()
                    .find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.to_unescaped())
            };
            if challenge.scheme.eq_ignore_ascii_case("bearer") {
                let realm = Url::parse(&parameter("realm")?).ok()?;
                if !matches!(realm.scheme(), "http" | "https") {
                    return None;
                }
                return Some(Demand::Token(Service {
                    realm,
                    service: parameter("service"),
                    scope: parameter("scope").unwrap_or_else(|| scope.to_owned()),
                }));
            }
            if challenge.scheme.eq_ignore_ascii_case("basic") {
                basic = Some(Demand::Basic);
            }
        }
    }
    basic
}

fn refused(target: &Target, status: StatusCode) -> Error {
    let location = location(target.source.url());
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Error::NotFound {
            location,
            status: status.to_string(),
        },
        _ => Error::Refused {
            location,
            code: status.as_u16(),
            status: status.to_string(),
        },
    }
}

pub(super) fn blob_path(digest: Digest) -> String {
    format!("blobs/{digest}")
}

/// Host and port of a URL.
fn authority(url: &Url) -> &str {
    let text = url.as_str();
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn demanded(value: &str) -> Option<Demand> {
        let mut headers = HeaderMap::new();
        headers.insert(header::WWW_AUTHENTICATE, value.parse().unwrap());
        demand(&headers, "repository:a:pull")
    }

    #[test]
    fn a_service_for_tokens_is_read_from_the_challenge() {
        let value = r#"Bearer realm="https://auth.example/token",service="r.example",scope="repository:a/b:pull""#;
        let Some(Demand::Token(service)) = demanded(value) else {
            panic!("no service");
        };
        let mut url = service.realm.clone();
        service.query(&mut url);
        assert_eq!(
            url.as_str(),
            "https://auth.example/token?service=r.example&scope=repository%3Aa%2Fb%3Apull"
        );
        assert!(service.exchange("a&b").ends_with("&refresh_token=a%26b"));
    }

    #[rstest]
    #[case::basic("Basic realm=\"r\"", true)]
    #[case::both("Negotiate, Basic realm=\"r\"", true)]
    #[case::unknown("Negotiate", false)]
    #[case::broken("Basic realm=\"", false)]
    #[case::no_realm("Bearer service=\"s\"", false)]
    #[case::scheme("Bearer realm=\"file:///etc/shadow\"", false)]
    fn other_challenges(#[case] value: &str, #[case] basic: bool) {
        let expected = basic.then_some(Demand::Basic);
        assert_eq!(demanded(value), expected);
    }
}
