//! User data as Debian's cloud-init reads them, and as the daemon does.
//!
//! Invariant: each text goes through cloud-init's own programs, in the Python of its own release: what
//! the daemon calls ignored is ignored there, what it refuses is no configuration there, what it passes
//! on is unchanged, and what it merges means the same.
//! Failure: the text, with both readings.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Error, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e::program;
use podspec::{Content, GuestData, GuestName, Source, SourceKind, ignored_user_data};
use serde::Deserialize;
use serde_json::{Value, json};

/// What the readings of a text are compared by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// A map that is merged without a loss.
    Map,
    /// Reaches cloud-init as it is, and is not merged: it is no map, or has what a merged text cannot have.
    AsItIs,
    /// cloud-init makes nothing of it, and says so.
    Ignored,
    /// The daemon refuses it: cloud-init has no configuration from it.
    Refused,
}

use Reading::{AsItIs, Ignored, Map, Refused};

/// Texts of every form, and of what YAML 1.1 reads otherwise than one would think.
const TEXTS: &[(Reading, &str)] = &[
    (Map, "#cloud-config\nusers: [default, {name: me}]\n"),
    (Map, "#cloud-config # with a comment\na: 1\n"),
    (Map, "#Cloud-Config\na: 1\n"),
    (Map, "\n\n#cloud-config\na: 1\n"),
    (Map, "#cloud-config\r\na: 1\r\nb: |\r\n  two\r\n  lines\r\n"),
    (Map, "#cloud-config\n%YAML 1.1\n---\na: 1\n"),
    (Map, "#cloud-config\n--- {a: 1}\n...\n"),
    (
        Map,
        "#cloud-config\nwrite_files:\n- {path: /a, permissions: 0644}\n",
    ),
    (
        Map,
        "#cloud-config\nwrite_files:\n- {path: /a, permissions: '0644'}\n",
    ),
    (
        Map,
        "#cloud-config\nn: [010, 0o10, 08, 0x1F, 0b11, 1_000, +5, -0, 0]\n",
    ),
    (
        Map,
        "#cloud-config\nn: [1:30, 190:20:30, '1:30', 1:60, 12:30:45.5]\n",
    ),
    (
        Map,
        "#cloud-config\nn: [1e3, 1.5e3, 1.5e+3, 1., .5, -1.5, 1_000.5, 6.8523015e+5]\n",
    ),
    (
        Map,
        "#cloud-config\nb: [yes, No, on, OFF, true, False, y, n, Y]\n",
    ),
    (Map, "#cloud-config\nn: [~, null, Null, NULL, '', nUll]\n"),
    (Map, "#cloud-config\na:\nb: ''\nc: []\n"),
    (Map, "#cloud-config\na: 1\na: 2\nm: {x: 1, x: 2}\n"),
    (
        Map,
        "#cloud-config\nbase: &b {x: 1, y: 2}\nm: {<<: *b, y: 3}\n",
    ),
    (
        Map,
        "#cloud-config\nbase: [&b {x: 1}, &c {x: 2, z: 3}]\nm: {<<: [*b, *c]}\n",
    ),
    (Map, "#cloud-config\na: &x [1, 2]\nb: *x\n"),
    (
        Map,
        "#cloud-config\nt: |\n  two\n  lines\nu: >\n  one\n  line\nv: |-\n  no end\nw: |+\n  more\n\n",
    ),
    (
        Map,
        "#cloud-config\nt: \"tab\\t \\u00e4 \\x41 \\\n  continued\"\nu: 'it''s'\n",
    ),
    (
        Map,
        "#cloud-config\numlaut: \u{e4}\u{f6}\u{fc}\nsnow: \u{2603}\nsmile: \u{1f600}\n",
    ),
    (Map, "#cloud-config\n? a\n: 1\n? b\n: 2\n"),
    (
        Map,
        "#cloud-config\nruncmd:\n- [sh, -c, 'echo \"$HOME\" : # no']\n- echo a: b\n",
    ),
    (
        Map,
        "#cloud-config\nt: !!str 010\nn: !!int '7'\nf: !!float 1\nb: !!bool 'yes'\n",
    ),
    (
        Map,
        "#cloud-config\nk: ssh-ed25519 AAAA a@b # comment\nv: a#b\n",
    ),
    (
        Map,
        "#cloud-config\nmerge_how: 'list(append)+dict(recurse_array)+str()'\nruncmd: [a]\n",
    ),
    (
        Map,
        "#cloud-config\nd: ['2001-01-01', 2001-1-1, 01-01-2001, 2001-01-01T1:1:1, 2001-01-01 1]\n",
    ),
    (
        Map,
        "#cloud-config\nbig: [9223372036854775807, 18446744073709551615, 0777, 0xFFFFFFFF]\n",
    ),
    (Map, "#cloud-config\n{\"json\": [1, true, null, \"x\"]}\n"),
    (
        Map,
        "#cloud-config\nn: [0_1, 0b_1, -0x1F, 1__0, 0777_7, 0_, 00, 0x_f, 0x, 0B1, _1, 1-2]\n",
    ),
    (
        Map,
        "#cloud-config\nn: [+.5, -.5, ., ._, 1.E-1, 08.5, 0:30, 0:30.5, -1:30, 1:30.5e+1, 1:130]\n",
    ),
    (
        Map,
        "#cloud-config\nn: [1.0e+20, 1.5e-9, 123456789012345678901.0, 5.0e-324]\n",
    ),
    (
        Map,
        "#cloud-config\nb: [yEs, tRue, oN]\nt: [! '12', ! yes, !!str , !!null x, !!float 1e3, !!bool yEs]\n",
    ),
    (Map, "#cloud-config\nm: {=: 1, '<<': 2}\n"),
    (
        Map,
        "#cloud-config\nm: {<<: {x: 1}, <<: {x: 2}, y: 3}\nn: {!!merge any: {x: 1}}\n",
    ),
    (Map, "#cloud-config\n&k key: 1\nother: {*k : 2}\n"),
    (Map, "#cloud-config\na: |\n  x\n  y"),
    (Map, "#cloud-config\na: >+\n  x\n  y"),
    (Map, "#cloud-config\na: |\n  x\n# y"),
    (Map, "#cloud-config\n?a: ?b\n"),
    (Map, "#cloud-config\n"),
    (Map, "#cloud-config\n{}\n"),
    (AsItIs, "#cloud-config\nd: [2001-01-01]\n"),
    (AsItIs, "#cloud-config\nd: 2001-1-1 1:01:01.5 +1:30\n"),
    (AsItIs, "#cloud-config\nd: 2001-12-14t21:59:43Z\n"),
    (AsItIs, "#cloud-config\nd: !!timestamp '2001-01-01'\n"),
    (AsItIs, "#cloud-config\nn: [.inf]\n"),
    (AsItIs, "#cloud-config\nn: [-.INF]\n"),
    (AsItIs, "#cloud-config\nn: [+.inf]\n"),
    (AsItIs, "#cloud-config\nn: [.nan]\n"),
    (AsItIs, "#cloud-config\nn: [1.0e+999]\n"),
    (AsItIs, "#cloud-config\nn: [18446744073709551616]\n"),
    (AsItIs, "#cloud-config\ns: !!set {a, b}\n"),
    (AsItIs, "#cloud-config\no: !!omap [a: 1, b: 2]\n"),
    (AsItIs, "#cloud-config\np: !!pairs [a: 1, b: 2]\n"),
    (AsItIs, "#cloud-config\n1: one\n"),
    (AsItIs, "#cloud-config\nyes: two\n"),
    (AsItIs, "#cloud-config\n~: three\n"),
    (AsItIs, "#cloud-config\n1.5: four\n"),
    (AsItIs, "#cloud-config\n2001-01-01: five\n"),
    (AsItIs, "#cloud-config\n? [x]\n: 2\n"),
    (AsItIs, "#cloud-config\na: [=]\n"),
    (AsItIs, "#cloud-config\na: [<<]\n"),
    (AsItIs, "#cloud-config\nm: {<<: 1}\n"),
    (AsItIs, "#cloud-config\nn: [0b_]\n"),
    (AsItIs, "#cloud-config\nn: !!int 08\n"),
    (AsItIs, "#cloud-config\nt: !mine x\n"),
    (AsItIs, "#cloud-config\nusers: [?default, x]\n"),
    (AsItIs, "#cloud-config\na: &1:30 b\n"),
    (AsItIs, "#cloud-config\na: [&a 1, *a, &a 2, *a]\n"),
    (AsItIs, "#cloud-config\nt: \"a\u{85}b\"\n"),
    (AsItIs, "#cloud-config\nt: \"a\u{2028}b\"\n"),
    (
        AsItIs,
        "#cloud-config\nwrite_files:\n- {path: /a, content: !!binary H4sIAAAAAAAA/w==}\n",
    ),
    (AsItIs, "#!/bin/sh\necho hello\n"),
    (AsItIs, "#! /usr/bin/env python3\nprint(1)\n"),
    (AsItIs, "#cloud-boothook\n#!/bin/sh\ntrue\n"),
    (
        AsItIs,
        "#part-handler\ndef list_types(): return ['text/x']\n",
    ),
    (AsItIs, "#include\nfile:///included\n"),
    (AsItIs, "#include-once\nfile:///included\n"),
    (
        AsItIs,
        "#cloud-config-archive\n- {type: text/cloud-config, content: 'a: 1'}\n- \"#!/bin/sh\\ntrue\\n\"\n",
    ),
    (
        AsItIs,
        "#cloud-config-jsonp\n[{\"op\": \"add\", \"path\": \"/a\", \"value\": 1}]\n",
    ),
    (
        AsItIs,
        "## template: jinja\n#cloud-config\na: {{ v1.instance_id }}\n",
    ),
    (AsItIs, MIME),
    (Ignored, "users: [{name: me}]\n"),
    (Ignored, "\u{feff}#cloud-config\na: 1\n"),
    (Ignored, "{\"ignition\": {\"version\": \"3.4.0\"}}\n"),
    (Ignored, "<powershell>\nhostname\n</powershell>\n"),
    (Ignored, "# cloud-config\na: 1\n"),
    (Ignored, "---\n#cloud-config\na: 1\n"),
    (Refused, "#cloud-config\n- a\n- b\n"),
    (Refused, "#cloud-config\na: [1\n"),
    (Refused, "#cloud-config\njust words\n"),
    (Refused, "#cloud-config\na: 1\n\tb: 2\n"),
    (Refused, "#cloud-config\na: @b\n"),
    (Refused, "#cloud-config\na: [,]\n"),
    (Refused, "#cloud-config\na: 1\n---\nb: 2\n"),
    (Refused, "#cloud-config\na: 1\n...\nb: 2\n"),
];

const MIME: &str = "Content-Type: multipart/mixed; boundary=\"==x\"\nMIME-Version: 1.0\n\n--==x\n\
    Content-Type: text/cloud-config\n\na: 1\n--==x\nContent-Type: text/x-shellscript\n\n#!/bin/sh\ntrue\n\
    --==x--\n";

/// What `texts.py` prints of one.
#[derive(Debug, Deserialize, PartialEq)]
struct Seen {
    kinds: Vec<String>,
    ignored: bool,
    config: Option<Value>,
    error: Option<String>,
}

#[test]
#[ignore = "needs root"]
fn user_data_mean_to_cloud_init_what_the_daemon_takes_them_for() -> Result<()> {
    let root = tempfile::tempdir()?;
    unpack(root.path())?;
    let merged: Vec<_> = TEXTS.iter().map(|(_, text)| merged(text)).collect();
    let all = TEXTS.iter().map(|(_, text)| text.as_bytes().to_vec());
    let again = merged.iter().map(|text| text.clone().unwrap_or_default());
    let seen = read(root.path(), &all.chain(again).collect::<Vec<_>>())?;
    let (first, second) = seen.split_at(TEXTS.len());
    let mut wrong = Vec::new();
    for (index, (reading, text)) in TEXTS.iter().enumerate() {
        let first = &first[index];
        let second = &second[index];
        if let Err(error) = agree(
            *reading,
            text,
            first,
            merged[index].as_deref().zip(Some(second)),
        ) {
            wrong.push(format!("{text:?}: {error:#}"));
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} texts:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    Ok(())
}

fn agree(reading: Reading, text: &str, seen: &Seen, merged: Option<(&[u8], &Seen)>) -> Result<()> {
    let ignored = ignored_user_data(text.as_bytes());
    ensure!(
        ignored.is_some() == seen.ignored && seen.ignored == (reading == Ignored),
        "cloud-init has {seen:?}, the daemon {ignored:?}"
    );
    let passed = passed_on(text);
    match &passed {
        Ok(bytes) => ensure!(
            bytes == text.as_bytes() && reading != Refused,
            "passed on as {:?}; cloud-init has {seen:?}",
            String::from_utf8_lossy(bytes)
        ),
        Err(error) => ensure!(
            reading == Refused && seen.config.is_none(),
            "refused: {error}; cloud-init has {seen:?}"
        ),
    }
    if reading == AsItIs && text.starts_with("#cloud-config") {
        ensure!(
            merged.is_none(),
            "merged, it is {merged:?}; cloud-init has {seen:?}"
        );
    }
    if reading == Map {
        let (bytes, again) = merged.context("it cannot be merged")?;
        ensure!(
            again.config == seen.config && again.error.is_none(),
            "merged, it is {:?}\nwhich is {:?}\nand was {:?}",
            String::from_utf8_lossy(bytes),
            again.config,
            seen.config
        );
    }
    Ok(())
}

const GUEST: GuestName<'_> = GuestName {
    instance_id: "vm.default",
    host_name: "vm",
};

/// The text as the one key of a Secret.
fn passed_on(text: &str) -> Result<Vec<u8>> {
    let source = Source::new(SourceKind::Secret, "seed").map_err(Error::msg)?;
    let content = Content([("userdata".to_owned(), text.as_bytes().to_vec())].into());
    user_data(
        &[("cloud-init-user-data-source", "secret/seed/userdata")],
        &[(source, content)].into(),
    )
}

/// The text merged with a source of other keys, which has none.
fn merged(text: &str) -> Option<Vec<u8>> {
    let source = Source::new(SourceKind::ConfigMap, "keys").ok()?;
    let settings = [
        ("cloud-init-user-data-source", "configmap/keys"),
        ("cloud-init-user-data", text),
    ];
    user_data(&settings, &[(source, Content(BTreeMap::new()))].into()).ok()
}

fn user_data(settings: &[(&str, &str)], sources: &BTreeMap<Source, Content>) -> Result<Vec<u8>> {
    let pair = |(key, value): &(&str, &str)| (format!("vmlet.dev/{key}"), (*value).to_owned());
    let data = GuestData::from_pod(&settings.iter().map(pair).collect())?;
    let data = data.context("no guest data")?;
    Ok(data.assemble(&GUEST, sources)?.user_data)
}

/// Debian's cloud-init and its Python, from the packages that the image is built of.
fn unpack(root: &Path) -> Result<()> {
    let packages = workspace().join("target/debian/packages");
    let wanted = [
        "cloud-init_",
        "python3",
        "libpython3",
        "libc6_",
        "libexpat1_",
        "zlib1g_",
        "libyaml-0-2_",
        "libssl3_",
        "libffi8_",
        "libcrypt1_",
        "libgcc-s1_",
        "libuuid1_",
        "libbz2-1.0_",
        "liblzma5_",
    ];
    let mut count = 0;
    for entry in fs::read_dir(&packages).with_context(|| packages.display().to_string())? {
        let file = entry?.path();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if wanted.iter().any(|start| name.starts_with(start)) && name.ends_with(".deb") {
            let mut dpkg = Command::new("dpkg-deb");
            let output = program::output(dpkg.arg("-x").args([&file, root]))?;
            ensure!(output.status.success(), "{dpkg:?}: {output:?}");
            count += 1;
        }
    }
    ensure!(
        count > wanted.len(),
        "{} packages in {}: remove target/debian, so that the image is built again",
        count,
        packages.display()
    );
    fs::create_dir_all(root.join("tmp"))?;
    fs::write(root.join("included"), "#cloud-config\nincluded: 1\n")?;
    fs::write(root.join("texts.py"), include_str!("texts.py"))?;
    Ok(())
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(root: &Path, texts: &[Vec<u8>]) -> Result<Vec<Seen>> {
    let input: Vec<_> = texts.iter().map(|text| STANDARD.encode(text)).collect();
    let mut stdin = tempfile::tempfile()?;
    stdin.write_all(json!(input).to_string().as_bytes())?;
    stdin.rewind()?;
    let mut python = Command::new("chroot");
    python.arg(root).args(["/usr/bin/python3", "/texts.py"]);
    let output = program::output_of(python.stdin(stdin))?;
    ensure!(output.status.success(), "texts.py: {output:?}");
    let seen: Vec<Seen> = serde_json::from_slice(&output.stdout).context("output of texts.py")?;
    ensure!(seen.len() == texts.len(), "{} readings", seen.len());
    Ok(seen)
}
