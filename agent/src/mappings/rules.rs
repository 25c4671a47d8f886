//! The rules of an object, as a file of image translations.
//!
//! Invariant: the file has what the object has, and the certificates of the Secrets that it names.
//! Failure: a sentence for the status of the object; it repeats nothing of a Secret.

use crds::{ImageMappingSpec, ImageTransport, SecretReference, TransportTls};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::{Map, Value, json};

use crate::objects;

/// Which right the agent needs.
const ADVICE: &str = "give it the right (deploy/agent/sources.yaml)";
/// The transport of rules that name none: in an object, and in a file.
const DEFAULT: (&str, &str) = ("default", "");

/// The text of the file.
pub(super) async fn file_text(
    client: &kube::Client,
    spec: &ImageMappingSpec,
) -> Result<String, String> {
    let mut transports = Map::new();
    for (name, transport) in &spec.transports {
        let value = transport_of(client, transport).await;
        let value = value.map_err(|reason| format!("transport {name}: {reason}"))?;
        if name == DEFAULT.0 {
            transports.insert(DEFAULT.1.to_owned(), value.clone());
        }
        transports.insert(name.clone(), value);
    }
    let rules = spec.translations.iter().map(|rule| {
        present([
            ("name", json!(rule.name)),
            ("regexp", json!(rule.regexp)),
            ("url", json!(rule.url)),
            ("transport", json!(rule.transport)),
        ])
    });
    let file = present([
        ("prefix", json!(spec.prefix)),
        ("translations", rules.collect()),
        ("transports", transports.into()),
    ]);
    Ok(file.to_string())
}

async fn transport_of(client: &kube::Client, transport: &ImageTransport) -> Result<Value, String> {
    let tls = match &transport.tls {
        Some(tls) => tls_of(client, tls).await?,
        None => Value::Null,
    };
    let milliseconds = transport.timeout_seconds.map(|s| u64::from(s) * 1000);
    Ok(present([
        ("timeout", json!(milliseconds)),
        ("maxRedirects", json!(transport.max_redirects)),
        ("proxy", json!(transport.proxy)),
        ("tls", tls),
    ]))
}

async fn tls_of(client: &kube::Client, tls: &TransportTls) -> Result<Value, String> {
    let certificates = match &tls.secret {
        Some(secret) => certificates(read(client, secret).await?, secret)?,
        None => Value::Null,
    };
    Ok(present([
        ("serverName", json!(tls.server_name)),
        ("insecure", json!(tls.insecure)),
        ("certificates", certificates),
    ]))
}

fn certificates(secret: Secret, named: &SecretReference) -> Result<Value, String> {
    let data = secret.data.unwrap_or_default();
    let text = |key: &str| {
        let value = data
            .get(key)
            .map(|value| String::from_utf8(value.0.clone()));
        value
            .transpose()
            .map_err(|_| format!("{key} of Secret {} is not PEM", shown(named)))
    };
    let authority = text("ca.crt")?.map(|cert| json!({ "cert": cert }));
    let own = match (text("tls.crt")?, text("tls.key")?) {
        (Some(cert), Some(key)) => Some(json!({ "cert": cert, "key": key })),
        (None, None) => None,
        _ => {
            let secret = shown(named);
            return Err(format!(
                "Secret {secret} has only one of tls.crt and tls.key"
            ));
        }
    };
    let all: Vec<_> = authority.into_iter().chain(own).collect();
    if all.is_empty() {
        Err(format!(
            "Secret {} has none of ca.crt, tls.crt and tls.key",
            shown(named)
        ))
    } else {
        Ok(all.into())
    }
}

async fn read(client: &kube::Client, named: &SecretReference) -> Result<Secret, String> {
    let api = Api::namespaced(client.clone(), &named.namespace);
    let what = format!("Secret {}", shown(named));
    objects::read(&api, &named.name, &what, ADVICE).await
}

fn shown(named: &SecretReference) -> String {
    format!("{}/{}", named.namespace, named.name)
}

/// A map without the keys that have no value.
fn present<const N: usize>(pairs: [(&str, Value); N]) -> Value {
    let given = pairs.into_iter().filter(|(_, value)| !value.is_null());
    given
        .map(|(key, value)| (key.to_owned(), value))
        .collect::<Map<_, _>>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_has_authorities_and_a_pair_or_is_refused() {
        let named = SecretReference {
            namespace: "images".to_owned(),
            name: "ca".to_owned(),
        };
        let of = |keys: &[&str]| {
            let data = keys.iter().map(|key| {
                let value = k8s_openapi::ByteString(format!("PEM of {key}").into_bytes());
                ((*key).to_owned(), value)
            });
            let secret = Secret {
                data: Some(data.collect()),
                ..Secret::default()
            };
            certificates(secret, &named)
        };
        let both = json!([
            {"cert": "PEM of ca.crt"},
            {"cert": "PEM of tls.crt", "key": "PEM of tls.key"},
        ]);
        assert_eq!(of(&["ca.crt", "tls.crt", "tls.key"]), Ok(both));
        assert_eq!(of(&["ca.crt"]), Ok(json!([{"cert": "PEM of ca.crt"}])));
        for keys in [&["tls.crt"][..], &["tls.key", "ca.crt"], &[], &["x"]] {
            let refused = of(keys).unwrap_err();
            assert!(
                refused.contains("images/ca") && !refused.contains("PEM of"),
                "{refused}"
            );
        }
    }
}
