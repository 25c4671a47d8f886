//! What a refusal demands: the header `WWW-Authenticate`.
//!
//! Invariant: a token precedes a password, which then goes to the authorization service alone; a service
//! is reached by http or https.
//! Failure: a challenge that cannot be met is as none.

use http::{HeaderMap, header};
use http_auth::{ChallengeRef, parse_challenges};
use url::Url;

use crate::token::TokenService;

/// What a server demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// Name and password.
    Password,
    /// A token of this service.
    Token(TokenService),
}

/// What the headers of a refusal demand.
#[must_use]
pub fn demand(headers: &HeaderMap) -> Option<Demand> {
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
            service: parameter("service"),
            scope: parameter("scope"),
        })
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn demanded(values: &[&str]) -> Option<Demand> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::WWW_AUTHENTICATE, value.parse().unwrap());
        }
        demand(&headers)
    }

    #[rstest]
    #[case::basic(&["Basic realm=\"r\""], true)]
    #[case::both(&["Negotiate, Basic realm=\"r\""], true)]
    #[case::in_two_headers(&["Negotiate", "basic realm=\"r\""], true)]
    #[case::beside_a_service_that_is_no_url(&["Bearer realm=\"-\", Basic realm=\"r\""], true)]
    #[case::unknown(&["Negotiate"], false)]
    #[case::broken(&["Basic realm=\""], false)]
    #[case::no_realm(&["Bearer service=\"s\""], false)]
    #[case::file(&["Bearer realm=\"file:///etc/shadow\""], false)]
    #[case::none(&[], false)]
    fn a_password_is_demanded_or_nothing_that_can_be_given(
        #[case] values: &[&str],
        #[case] password: bool,
    ) {
        assert_eq!(demanded(values), password.then_some(Demand::Password));
    }

    #[test]
    fn a_token_precedes_a_password() {
        let both =
            r#"Basic realm="r", Bearer realm="https://auth.example/token",service="r.example""#;
        let Some(Demand::Token(service)) = demanded(&[both]) else {
            panic!("no service");
        };
        assert_eq!(service.realm.as_str(), "https://auth.example/token");
        assert_eq!(service.service.as_deref(), Some("r.example"));
        assert_eq!(service.scope, None);
    }
}
