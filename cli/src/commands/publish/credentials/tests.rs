//! Credentials in files and with helpers, as `docker login` leaves them.
//!
//! Invariant: each test has a directory of its own; a helper is a script that is run by its path.
//! Failure: a test names the registry whose credentials differ.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::*;

async fn found(config: &serde_json::Value, registry: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config.json");
    fs::write(file, config.to_string()).unwrap();
    let found = find(Some(directory.path()), registry).await.unwrap();
    found.map(|credentials| match credentials {
        Credentials::Password(user, password) => format!("{user} {password}"),
        Credentials::Identity(token) => format!("identity {token}"),
        Credentials::Bearer(token) => format!("bearer {token}"),
    })
}

#[tokio::test]
async fn credentials_are_those_of_the_registry_by_whatever_name_it_has() {
    let config = json!({"auths": {
        "r.example": {"auth": STANDARD.encode("me:a:b")},
        "https://r.example:5000/v2/": {"username": "you", "password": "p"},
        "https://index.docker.io/v1/": {"auth": STANDARD.encode("hub:p\0")},
        "tokens.example": {"identitytoken": "t", "auth": STANDARD.encode("me:p")},
        "bearer.example": {"registrytoken": "t"},
        "empty.example": {},
        "odd.example": {"auth": "%"},
    }, "HttpHeaders": {"a": "b"}});
    for (registry, expected) in [
        ("r.example", Some("me a:b")),
        ("r.example:5000", Some("you p")),
        ("docker.io", Some("hub p")),
        ("tokens.example", Some("identity t")),
        ("bearer.example", Some("bearer t")),
        ("empty.example", None),
        ("odd.example", None),
        ("example", None),
    ] {
        let found = found(&config, registry).await;
        assert_eq!(found.as_deref(), expected, "{registry}");
    }
}

#[tokio::test]
async fn without_a_file_there_are_no_credentials_and_a_broken_one_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let none = find(Some(directory.path()), "r.example").await.unwrap();
    assert!(none.is_none());
    fs::write(
        directory.path().join("config.json"),
        "{\"auths\": [\"secret\"]}",
    )
    .unwrap();
    let broken = find(Some(directory.path()), "r.example").await.unwrap_err();
    let text = broken.to_string();
    assert!(
        text.contains("config.json") && !text.contains("secret"),
        "{text}"
    );
}

#[tokio::test]
async fn a_helper_of_another_place_is_not_run() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["../evil", "a/b", "a b"] {
        let config = json!({"credHelpers": {"r.example": name}});
        fs::write(directory.path().join("config.json"), config.to_string()).unwrap();
        let refused = find(Some(directory.path()), "r.example").await;
        assert!(
            matches!(refused, Err(CredentialsError::HelperName { .. })),
            "{name}"
        );
    }
    let absent = json!({"credsStore": "vmlet-absent"});
    fs::write(directory.path().join("config.json"), absent.to_string()).unwrap();
    let absent = find(Some(directory.path()), "r.example").await.unwrap_err();
    assert!(
        absent
            .to_string()
            .contains("docker-credential-vmlet-absent")
    );
}

#[tokio::test]
async fn a_helper_gives_the_credentials_of_the_server_that_it_is_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let helper = |text: &str| {
        let path = directory.path().join("helper");
        fs::write(&path, format!("#!/bin/sh\nread server\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let echo = r#"echo "{\"ServerURL\":\"$server\",\"Username\":\"$server\",\"Secret\":\"s\"}""#;
    let asked = ask(&helper(echo), server("docker.io")).await.unwrap();
    let Some(Credentials::Password(user, password)) = asked else {
        panic!("no password");
    };
    assert_eq!((&*user, &*password), (DOCKER_HUB, "s"));
    let token = r#"echo '{"Username":"<token>","Secret":"t"}'"#;
    let asked = ask(&helper(token), "r.example").await.unwrap();
    assert!(matches!(asked, Some(Credentials::Identity(token)) if token == "t"));
    let none = ask(&helper("echo 'credentials not found'; exit 1"), "r.example").await;
    assert!(none.unwrap().is_none());
    let odd = ask(&helper("echo secret"), "r.example").await.unwrap_err();
    assert!(matches!(odd, CredentialsError::Unknown(_)));
    assert!(!odd.to_string().contains("secret"));
}

#[test]
fn no_credentials_are_in_a_debug_text() {
    let credentials = Credentials::Password("me".to_owned(), "hush".to_owned());
    assert_eq!(format!("{credentials:?}"), "Credentials");
    assert!(
        credentials
            .basic()
            .is_some_and(|value| value.is_sensitive())
    );
}
