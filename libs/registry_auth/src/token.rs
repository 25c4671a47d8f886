//! Requests for tokens, and their replies.
//!
//! Invariant: an identity token is in a form, never in a URL, which servers log.
//! Failure: a reply without a token has none.

use http::HeaderValue;
use serde::Deserialize;
use url::Url;

use crate::header::bearer;

/// An authorization service, and what it gives tokens for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenService {
    /// Where it is.
    pub realm: Url,
    /// Whom its tokens are for.
    pub service: Option<String>,
    /// What the refused request needs, as the server names it.
    pub scope: Option<String>,
}

#[derive(Deserialize)]
struct Reply {
    token: Option<String>,
    access_token: Option<String>,
}

impl TokenService {
    /// Whether it can be reached without encryption only.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.realm.scheme() != "https"
    }

    /// The URL of a request for a token for `scope`; a password is in a header.
    #[must_use]
    pub fn request(&self, scope: &str) -> Url {
        let mut url = self.realm.clone();
        let mut query = url.query_pairs_mut();
        if let Some(service) = &self.service {
            query.append_pair("service", service);
        }
        query.append_pair("scope", scope);
        drop(query);
        url
    }

    /// The form that exchanges an identity token for one of the registry; it is posted to the realm.
    #[must_use]
    pub fn exchange(&self, client: &str, scope: &str, identity: &str) -> String {
        let mut form = self.realm.clone();
        form.set_query(None);
        form.query_pairs_mut()
            .append_pair("grant_type", "refresh_token")
            .append_pair("client_id", client)
            .append_pair("service", self.service.as_deref().unwrap_or_default())
            .append_pair("scope", scope)
            .append_pair("refresh_token", identity);
        form.query().unwrap_or_default().to_owned()
    }
}

/// The header with the token that a service has replied.
#[must_use]
pub fn token_in(reply: &[u8]) -> Option<HeaderValue> {
    let reply: Reply = serde_json::from_slice(reply).ok()?;
    bearer(&reply.token.or(reply.access_token)?)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn service(realm: &str, service: Option<&str>) -> TokenService {
        TokenService {
            realm: Url::parse(realm).unwrap(),
            service: service.map(str::to_owned),
            scope: None,
        }
    }

    #[test]
    fn a_request_keeps_the_query_of_the_realm_and_an_exchange_is_a_form() {
        let one = service("https://auth.example/token?a=b", Some("r.example"));
        assert_eq!(
            one.request("repository:a/b:pull").as_str(),
            "https://auth.example/token?a=b&service=r.example&scope=repository%3Aa%2Fb%3Apull"
        );
        assert_eq!(
            one.exchange("me", "s", "a&b"),
            "grant_type=refresh_token&client_id=me&service=r.example&scope=s&refresh_token=a%26b"
        );
        assert!(!one.is_plain());
        let other = service("http://auth.example/token", None);
        assert_eq!(
            other.request("s").as_str(),
            "http://auth.example/token?scope=s"
        );
        assert!(other.is_plain());
    }

    #[rstest]
    #[case::token(r#"{"token":"t","expires_in":300}"#, Some("Bearer t"))]
    #[case::access_token(r#"{"access_token":"t"}"#, Some("Bearer t"))]
    #[case::both(r#"{"access_token":"a","token":"t"}"#, Some("Bearer t"))]
    #[case::none("{}", None)]
    #[case::no_header(r#"{"token":"a\nb"}"#, None)]
    #[case::no_json("<html>", None)]
    fn the_token_of_a_reply(#[case] reply: &str, #[case] expected: Option<&str>) {
        let found = token_in(reply.as_bytes());
        assert_eq!(
            found.as_ref().map(|value| value.to_str().unwrap()),
            expected
        );
        assert!(found.is_none_or(|value| value.is_sensitive()));
    }
}
