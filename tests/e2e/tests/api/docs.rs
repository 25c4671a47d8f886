//! The examples of the documentation and of `examples`, as the real API server sees them.
//!
//! Invariant: whatever a page shows of our kinds can be applied as it is.
//! Failure: the page, the example's name, and what the API server reported.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use e2e::Control;

/// A block of YAML in a page.
struct Example {
    page: String,
    text: String,
}

fn pages(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            pages(&path, found)?;
        } else if path.extension().is_some_and(|ending| ending == "md") {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

/// Every block that is an object of ours.
fn examples() -> Result<Vec<Example>> {
    let mut found = Vec::new();
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    pages(&docs, &mut found)?;
    let mut examples = Vec::new();
    for path in found {
        let text = std::fs::read_to_string(&path)?;
        let page = path.strip_prefix(&docs)?.display().to_string();
        for part in text.split("```yaml\n").skip(1) {
            let (block, _) = part.split_once("```").context("a block without an end")?;
            if block.contains("apiVersion: vmlet.dev/") {
                examples.push(Example {
                    page: page.clone(),
                    text: block.to_owned(),
                });
            }
        }
    }
    let folder = docs.join("../examples");
    for entry in std::fs::read_dir(&folder)? {
        let path = entry?.path();
        let text = std::fs::read_to_string(&path)?;
        if text.contains("apiVersion: vmlet.dev/") {
            let page = path.strip_prefix(&docs)?.display().to_string();
            examples.push(Example { page, text });
        }
    }
    Ok(examples)
}

/// A case of the test in `rules.rs`.
pub(super) async fn every_example_of_the_documentation_can_be_applied(
    control: &Control,
) -> Result<()> {
    let examples = examples()?;
    for definition in crds::schema::definitions() {
        let kind = format!("kind: {}\n", definition.spec.names.kind);
        let shown = examples.iter().any(|one| one.text.contains(&kind));
        ensure!(shown, "no page shows a {kind}");
    }
    let texts: Vec<&str> = examples.iter().map(|one| one.text.as_str()).collect();
    // One process for all; only when one of them is wrong it matters which.
    let Err(error) = control.cluster().dry_run(&texts.join("\n---\n")) else {
        return Ok(());
    };
    let mut wrong = Vec::new();
    for Example { page, text } in &examples {
        if let Err(error) = control.cluster().dry_run(text) {
            wrong.push(format!("{page}: {error:#}\n{text}"));
        }
    }
    Err(error.context(wrong.join("\n")))
}
