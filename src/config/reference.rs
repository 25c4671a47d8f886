//! The reference page of all settings, made from their doc comments.
//!
//! Invariant: `docs/configuration.md` is exactly what this makes.
//! Failure: the test fails when the page is stale; run it with `UPDATE_DOCS=1` to write the page anew.

use std::fmt::Write as _;
use std::path::Path;

use super::SECTIONS;
use super::schema::{Kind, SETTINGS, Setting};

const INTRODUCTION: &str = "\
# Configuration of `vmlet`

Settings come from four layers; the last one that speaks wins:

1. the defaults below;
2. a TOML file: `/etc/vmlet/vmlet.toml` if it exists, or the one that `--config FILE` names;
3. environment variables, named like the setting: `VMLET_LISTEN`, `VMLET_LIBVIRT_URI`;
4. flags, named like the setting: `--listen`, `--libvirt-uri`.

A key that does not exist, or a value that makes no sense, stops the start with exit code 64 and a message
that names line and column, the variable or the flag. `vmlet config show` prints the configuration in force
and where each value came from; it takes the same flags and reads the same file and environment as the daemon.

Paths are absolute. Sizes are Kubernetes quantities such as `512Mi`.
";

fn page() -> String {
    let mut out = String::from(INTRODUCTION);
    let top = [("", ["Top level of the file."].as_slice())];
    for (section, doc) in top.iter().chain(SECTIONS) {
        let title = if section.is_empty() {
            "Top level".to_owned()
        } else {
            format!("`[{section}]`")
        };
        let doc: Vec<_> = doc.iter().map(|line| line.trim()).collect();
        write!(out, "\n## {title}\n\n").unwrap();
        if !section.is_empty() {
            write!(out, "{}\n\n", doc.join(" ")).unwrap();
        }
        out.push_str("| key | default | meaning |\n| --- | --- | --- |\n");
        for setting in SETTINGS.iter().filter(|s| s.section() == *section) {
            let (name, doc) = (setting.name(), &setting.doc);
            writeln!(out, "| `{name}` | {} | {doc} |", default(setting)).unwrap();
        }
    }
    out.push_str(EXAMPLE);
    out
}

fn default(setting: &Setting) -> String {
    match setting.kind {
        Kind::Tables => "none".to_owned(),
        Kind::Number => format!("`{}`", setting.default),
        Kind::Text => format!("`\"{}\"`", setting.default),
    }
}

const EXAMPLE: &str = r#"
## Example

```toml
[log]
format = "json"

[vm]
default_memory = "512Mi"

[images]
ca_file = "/etc/vmlet/registry-ca.pem"

[[images.translations]]
name = "debian"
url = "https://images.example.org/debian-12.qcow2"

[[images.translations]]
prefix = "golden/"
url = "https://images.example.org/golden"
```
"#;

#[test]
fn the_reference_page_is_what_the_doc_comments_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/configuration.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page(),
        "docs/configuration.md is stale: run `UPDATE_DOCS=1 cargo test -p vmlet reference_page`"
    );
}

#[test]
fn the_example_of_the_page_is_a_valid_file() {
    let file = EXAMPLE.split("```toml").nth(1).unwrap();
    let file = file.split("```").next().unwrap();
    toml::from_str::<super::PartialConfig>(file).unwrap();
}
