//! The index of Virtlet's rules, `tests/fixtures/virtlet.tsv`.
//!
//! Invariant: every test, vector and sentence that it names is there, and every vector of the
//! fixtures for Virtlet alone is in it.
//! Failure: the test shows the lines without their subject, and the vectors without a line.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FIXTURES: &str = "tests/fixtures";
/// Areas of which every rule has a line.
const AREAS: [&str; 13] = [
    "4", "6.6", "6.7", "6.8", "7.1", "7.2", "7.3", "7.4", "7.5", "7.6", "7.7", "7.8", "8.2",
];

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(path).expect(name)
}

struct Line {
    area: String,
    file: String,
    subject: String,
}

fn lines() -> Vec<Line> {
    let text = read(&format!("{FIXTURES}/virtlet.tsv"));
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let columns: Vec<_> = line.split('\t').map(str::to_owned).collect();
        assert_eq!(columns.len(), 4, "{line}");
        assert!(columns.iter().all(|column| !column.is_empty()), "{line}");
        Line {
            area: columns[0].split(' ').next().unwrap().to_owned(),
            file: columns[2].clone(),
            subject: columns[3].clone(),
        }
    };
    lines.map(line).collect()
}

/// The names of a file's tests.
fn tests(text: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        is_test |= ["#[test]", "#[tokio::test", "#[rstest]"]
            .iter()
            .any(|attribute| line.starts_with(attribute));
        let code = line.strip_prefix("async ").unwrap_or(line);
        if let Some((name, _)) = code.strip_prefix("fn ").and_then(|of| of.split_once('(')) {
            if is_test {
                names.insert(name);
            }
            is_test = false;
        }
    }
    names
}

fn vectors(text: &str) -> BTreeSet<&str> {
    let lines = text.lines();
    lines
        .filter_map(|line| line.strip_prefix("- about: "))
        .collect()
}

fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The functions that tests on a shared stack or cluster run as their cases.
fn cases() -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/e2e/tests");
    let mut names = BTreeSet::new();
    for program in ["stacks", "clusters"] {
        for entry in std::fs::read_dir(folder.join(program)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|kind| kind != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(path).unwrap();
            for list in ["cases!(", "side_by_side!("] {
                for found in text.split(list).skip(1) {
                    let found = found.split(']').next().unwrap();
                    let words = found.split(|c: char| !c.is_alphanumeric() && c != '_');
                    names.extend(words.map(str::to_owned));
                }
            }
        }
    }
    names
}

/// Whether a file has a function that a test runs as a case.
fn has_case(text: &str, subject: &str) -> bool {
    text.contains(&format!("async fn {subject}(")) && cases().contains(subject)
}

fn has(file: &str, text: &str, subject: &str) -> bool {
    match file.rsplit('.').next() {
        Some("rs") => tests(text).contains(subject) || has_case(text, subject),
        Some("yaml") => vectors(text).contains(subject),
        _ => words(text).contains(subject),
    }
}

#[test]
fn every_rule_of_virtlet_has_a_test_or_a_sentence() {
    let lines = lines();
    let mut files = BTreeMap::new();
    let mut missing = Vec::new();
    for Line { file, subject, .. } in &lines {
        let text = files.entry(file.as_str()).or_insert_with(|| read(file));
        if !has(file, text, subject) {
            missing.push(format!("{file}: {subject}"));
        }
    }
    assert_eq!(missing, Vec::<String>::new());
    let areas: BTreeSet<_> = lines.iter().map(|line| line.area.as_str()).collect();
    assert_eq!(areas, AREAS.into());
}

#[test]
fn every_vector_for_virtlet_has_its_rule() {
    let lines = lines();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(FIXTURES);
    let mut seen = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if !(name.starts_with("virtlet-") && name.ends_with(".yaml")) {
            continue;
        }
        seen += 1;
        let file = format!("{FIXTURES}/{name}");
        let listed = lines.iter().filter(|line| line.file == file);
        let listed: BTreeSet<_> = listed.map(|line| line.subject.as_str()).collect();
        let text = read(&file);
        let others: Vec<_> = vectors(&text).difference(&listed).copied().collect();
        assert_eq!(others, Vec::<&str>::new(), "{file}");
    }
    assert!(seen >= 4, "{seen}");
}
