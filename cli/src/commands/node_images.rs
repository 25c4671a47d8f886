//! `node images`: the images in the store of this node, and the pulls in progress.
//!
//! Invariant: JSON and YAML have full ids and numbers; the table is for people.
//! Failure: the daemon's; an image that is removed meanwhile is left out.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use cri_proto::v1::{Image, ImageSpec};
use indicatif::HumanBytes;
use serde::{Deserialize, Serialize};

use super::progress::Progress;
use crate::context::Endpoint;
use crate::table;

/// The output format.
#[derive(Debug, Args)]
pub(crate) struct NodeImagesArgs {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    /// With the names of the users.
    Wide,
    Json,
    Yaml,
}

/// What the daemon says about an image in the verbose status.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    format: String,
    virtual_size: u64,
    /// Nanoseconds since the epoch; 0: unknown.
    pulled_at: i64,
    used_at: i64,
    users: Vec<String>,
}

/// A pull in progress, in the verbose status of the daemon.
#[derive(Debug, Deserialize)]
struct Pull {
    image: String,
    #[serde(flatten)]
    progress: Progress,
}

/// The verbose status of the daemon, as far as it is about images.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    pulls: Vec<Pull>,
}

/// One image, as printed.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    names: Vec<String>,
    /// Empty as long as the image is pulled.
    digest: String,
    size_bytes: u64,
    virtual_size_bytes: u64,
    format: String,
    /// Nanoseconds since the epoch.
    pulled_at: i64,
    age_seconds: Option<u64>,
    last_used_at: i64,
    unused_seconds: Option<u64>,
    /// What keeps the image in the store.
    users: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pull: Option<Progress>,
}

pub(crate) async fn run(endpoint: &Endpoint, args: &NodeImagesArgs) -> anyhow::Result<ExitCode> {
    let runtime = endpoint.connect().await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let mut rows = Vec::new();
    for image in runtime.images().await? {
        let spec = ImageSpec {
            image: image.id.clone(),
            ..ImageSpec::default()
        };
        let mut status = runtime.image_status(spec, true).await?;
        if status.image.is_some() {
            let details = parse(status.info.remove("info"));
            rows.push(row(&image, details, now));
        }
    }
    let status: Status = parse(runtime.status().await?.info.remove("info"));
    rows.extend(status.pulls.into_iter().map(pulling));
    rows.sort_by(|a, b| (&a.names, &a.digest).cmp(&(&b.names, &b.digest)));
    super::print(&match args.output {
        Output::Table => render(&rows, false),
        Output::Wide => render(&rows, true),
        Output::Json => format!("{}\n", serde_json::to_string_pretty(&rows)?),
        Output::Yaml => super::yaml(&rows)?,
    })?;
    Ok(ExitCode::SUCCESS)
}

/// A daemon of another version may say less.
fn parse<T: Default + for<'a> Deserialize<'a>>(text: Option<String>) -> T {
    let parsed = text.and_then(|text| serde_json::from_str(&text).ok());
    parsed.unwrap_or_default()
}

fn row(image: &Image, details: Details, now: Duration) -> Row {
    let since = |nanos: i64| {
        let at = u64::try_from(nanos).ok().filter(|nanos| *nanos > 0)?;
        Some(now.saturating_sub(Duration::from_nanos(at)).as_secs())
    };
    let names = if image.repo_tags.is_empty() {
        image.repo_digests.clone()
    } else {
        image.repo_tags.clone()
    };
    Row {
        names,
        digest: image.id.clone(),
        size_bytes: image.size,
        virtual_size_bytes: details.virtual_size,
        format: details.format,
        pulled_at: details.pulled_at,
        age_seconds: since(details.pulled_at),
        last_used_at: details.used_at,
        unused_seconds: since(details.used_at),
        users: details.users,
        pull: None,
    }
}

fn pulling(pull: Pull) -> Row {
    Row {
        names: vec![pull.image],
        digest: String::new(),
        size_bytes: pull.progress.total_bytes.unwrap_or(0),
        virtual_size_bytes: 0,
        format: String::new(),
        pulled_at: 0,
        age_seconds: None,
        last_used_at: 0,
        unused_seconds: None,
        users: Vec::new(),
        pull: Some(pull.progress),
    }
}

fn render(rows: &[Row], wide: bool) -> String {
    let mut header = vec![
        "NAME",
        "DIGEST",
        "SIZE",
        "STATE",
        "AGE",
        "LAST-USED",
        "USERS",
    ];
    if wide {
        header.extend(["FORMAT", "VIRTUAL-SIZE", "USED-BY"]);
    }
    let cells: Vec<_> = rows.iter().map(|row| cells(row, wide)).collect();
    let mut table = table::Table::new(&header);
    cells.iter().for_each(|row| table.measure(row));
    let lines = cells.iter().map(|row| table.row(row, |_, text| text));
    format!("{}{}", table.header(), lines.collect::<String>())
}

fn cells(row: &Row, wide: bool) -> Vec<String> {
    let or_dash = |text: String| {
        if text.is_empty() {
            "-".to_owned()
        } else {
            text
        }
    };
    let size = |bytes: u64| match bytes {
        0 => "-".to_owned(),
        bytes => HumanBytes(bytes).to_string(),
    };
    let age = |seconds: Option<u64>| {
        let age = seconds.map(|seconds| table::age(Duration::from_secs(seconds)));
        age.unwrap_or_else(|| "-".to_owned())
    };
    let digest = row.digest.strip_prefix("sha256:").unwrap_or(&row.digest);
    let state = match row.pull.as_ref().map(Progress::percent) {
        None => "ready".to_owned(),
        Some(None) => "pulling".to_owned(),
        Some(Some(percent)) => format!("pulling {percent}%"),
    };
    let mut cells = vec![
        or_dash(row.names.join(",")),
        or_dash(table::short(digest)),
        size(row.size_bytes),
        state,
        age(row.age_seconds),
        age(row.unused_seconds),
        row.users.len().to_string(),
    ];
    if wide {
        cells.push(or_dash(row.format.clone()));
        cells.push(size(row.virtual_size_bytes));
        cells.push(or_dash(row.users.join(",")));
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let image = Image {
            id: format!("sha256:{}", "ab".repeat(32)),
            repo_tags: vec![
                "vmlet.dev/debian:12".into(),
                "vmlet.dev/debian:latest".into(),
            ],
            size: 3 << 29,
            ..Image::default()
        };
        let details = parse(Some(
            r#"{"format": "qcow2", "virtualSize": 3221225472, "pulledAt": 1000000000,
                "usedAt": 4001000000000, "users": ["pod default/web", "disk default/db"]}"#
                .to_owned(),
        ));
        let bare = Image {
            id: format!("sha256:{}", "cd".repeat(32)),
            size: 512,
            ..Image::default()
        };
        let status: Status = parse(Some(
            r#"{"pulls": [{"image": "vmlet.dev/big:1", "receivedBytes": 9, "totalBytes": 20},
                          {"image": "vmlet.dev/new:1", "receivedBytes": 9, "totalBytes": null}]}"#
                .to_owned(),
        ));
        let now = Duration::from_secs(4001);
        let mut rows = vec![row(&image, details, now), row(&bare, parse(None), now)];
        rows.extend(status.pulls.into_iter().map(pulling));
        rows
    }

    #[test]
    fn the_table_has_ages_users_and_the_percentage_of_a_pull() {
        insta::assert_snapshot!(render(&rows(), false), @"
        NAME                                         DIGEST         SIZE      STATE        AGE  LAST-USED  USERS
        vmlet.dev/debian:12,vmlet.dev/debian:latest  ababababababa  1.50 GiB  ready        66m  0s         2
        -                                            cdcdcdcdcdcdc  512 B     ready        -    -          0
        vmlet.dev/big:1                              -              20 B      pulling 45%  -    -          0
        vmlet.dev/new:1                              -              -         pulling      -    -          0
        ");
    }

    #[test]
    fn a_wide_table_names_the_users() {
        insta::assert_snapshot!(render(&rows()[..1], true), @"
        NAME                                         DIGEST         SIZE      STATE  AGE  LAST-USED  USERS  FORMAT  VIRTUAL-SIZE  USED-BY
        vmlet.dev/debian:12,vmlet.dev/debian:latest  ababababababa  1.50 GiB  ready  66m  0s         2      qcow2   3.00 GiB      pod default/web,disk default/db
        ");
    }

    #[test]
    fn json_has_full_ids_and_numbers() {
        let rows = rows();
        insta::assert_json_snapshot!([&rows[0], &rows[2]], @r#"
        [
          {
            "names": [
              "vmlet.dev/debian:12",
              "vmlet.dev/debian:latest"
            ],
            "digest": "sha256:abababababababababababababababababababababababababababababababab",
            "sizeBytes": 1610612736,
            "virtualSizeBytes": 3221225472,
            "format": "qcow2",
            "pulledAt": 1000000000,
            "ageSeconds": 4000,
            "lastUsedAt": 4001000000000,
            "unusedSeconds": 0,
            "users": [
              "pod default/web",
              "disk default/db"
            ]
          },
          {
            "names": [
              "vmlet.dev/big:1"
            ],
            "digest": "",
            "sizeBytes": 20,
            "virtualSizeBytes": 0,
            "format": "",
            "pulledAt": 0,
            "ageSeconds": null,
            "lastUsedAt": 0,
            "unusedSeconds": null,
            "users": [],
            "pull": {
              "receivedBytes": 9,
              "totalBytes": 20
            }
          }
        ]
        "#);
    }
}
