//! What files of translations mean, by the vectors of `tests/fixtures/image-mappings.yaml`.
//!
//! Invariant: a refusal has the place in the file, and repeats no secret.
//! Failure: the vector that differs.

use serde::Deserialize;

use super::super::error::{Error, Result};
use super::super::locator::Origin;
use super::super::reference::{Name, Reference};
use super::super::settings::Protocol;
use super::super::translate::Place;
use super::*;

const VECTORS: &str = include_str!("../../../tests/fixtures/image-mappings.yaml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    about: String,
    files: Vec<String>,
    name: String,
    url: Option<String>,
    error: Option<String>,
}

fn name(text: &str) -> Name {
    match Reference::parse(text) {
        Ok(Reference::Named(name)) => name,
        other => panic!("{text}: {other:?}"),
    }
}

/// What the rules of files make of a name, or why they are refused.
fn outcome(files: &[String], text: &str) -> Result<String, String> {
    let parsed: Result<Vec<_>, _> = files
        .iter()
        .map(|file| parse(file, Protocol::Https, |_| Ok(None)))
        .collect();
    let rules = parsed.map_err(|problem| problem.to_string())?;
    let settings = Translator::new(Protocol::Https, &[]).unwrap();
    let translator = settings.with(rules, false);
    let place = translator.translate(&name(text), Origin::Default, |_| false);
    match place.map_err(|error: Error| error.to_string())? {
        Place::File(source) => Ok(source.url().to_string()),
        Place::Registry(place) => Ok(format!("oci://{place}")),
    }
}

#[test]
fn every_vector_has_its_outcome() {
    let vectors: Vec<Vector> = serde_saphyr::from_str(VECTORS).unwrap();
    assert!(vectors.len() > 40, "{}", vectors.len());
    for vector in vectors {
        let about = &vector.about;
        match (
            outcome(&vector.files, &vector.name),
            vector.url,
            vector.error,
        ) {
            (Ok(actual), Some(expected), None) => assert_eq!(actual, expected, "{about}"),
            (Err(actual), None, Some(expected)) => {
                assert!(actual.contains(&expected), "{about}: {actual}");
                assert!(!actual.contains("hush"), "{about}: {actual}");
            }
            (actual, ..) => panic!("{about}: {actual:?}"),
        }
    }
}

#[test]
fn a_file_has_a_limited_number_of_rules() {
    let file = |count: usize| {
        let rules = (0..count).map(|i| format!("  - {{name: n{i}, url: h.example/a}}\n"));
        format!("translations:\n{}", rules.collect::<String>())
    };
    assert!(outcome(&[file(1024)], "n1023").is_ok());
    let refused = outcome(&[file(1025)], "n1").unwrap_err();
    assert_eq!(
        refused,
        "line 1026, column 5: a file has at most 1024 translations"
    );
}

#[test]
fn what_a_parser_quotes_is_not_repeated() {
    let file = "translations: \"-----BEGIN hush\"\n".to_owned();
    let refused = outcome(&[file], "a").unwrap_err();
    assert!(refused.contains("line 1"), "{refused}");
    assert!(!refused.contains("hush"), "{refused}");
}
