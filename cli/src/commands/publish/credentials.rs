//! Credentials for a registry, as `docker login` has kept them: in its file, or with a helper program.
//!
//! Invariant: no credentials are in an error or a log. A helper is a program of the search path, has a deadline, and what
//! it says has a bound.
//! Failure: [`CredentialsError`] for a file that cannot be read and a helper that fails; a registry without
//! credentials has none.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use registry_auth::{Login, basic, bearer, host_in};
use reqwest::header::HeaderValue;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::timeout;

/// Time for a helper, which may wait for its user.
const HELPER: Duration = Duration::from_secs(60);

/// Most that a helper says.
const LIMIT: u64 = 64 << 10;

/// Largest file.
const LARGEST: u64 = 1 << 20;

/// The name of Docker Hub in the file.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// The user name of a helper for an identity token.
const TOKEN: &str = "<token>";

/// Credentials that cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialsError {
    #[error("failed to read the credentials in {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is no configuration of docker", .0.display())]
    Malformed(PathBuf),
    #[error("{} names the credential helper {name:?}, which is no name of one", path.display())]
    HelperName { path: PathBuf, name: String },
    #[error("failed to run {0}, which has the credentials for the registry: it must be in PATH")]
    Start(String, #[source] io::Error),
    #[error("{0} has not given the credentials for the registry within {t} s", t = HELPER.as_secs())]
    Late(String),
    #[error("{0} has given no credentials for the registry that this program knows")]
    Unknown(String),
}

/// What a client shows to a registry.
pub(super) enum Credentials {
    /// Name and password.
    Password(String, String),
    /// What the authorization service takes in exchange for a token.
    Identity(String),
    /// A token for the registry itself.
    Bearer(String),
}

#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credsStore")]
    store: String,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

#[derive(Deserialize)]
struct Given {
    #[serde(rename = "Username")]
    user: String,
    #[serde(rename = "Secret")]
    secret: String,
}

/// Finds the credentials for a registry in a directory, or in that of the user.
pub(super) async fn find(
    directory: Option<&Path>,
    registry: &str,
) -> Result<Option<Credentials>, CredentialsError> {
    let own = || std::env::home_dir().map(|home| home.join(".docker"));
    let directory = directory.filter(|directory| !directory.as_os_str().is_empty());
    let Some(directory) = directory.map(Path::to_owned).or_else(own) else {
        return Ok(None);
    };
    let path = directory.join("config.json");
    let config = read(&path)?;
    let helper = config.helper(registry);
    if let Some(name) = helper {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !name.chars().all(is_name) {
            let name = name.chars().take(64).collect();
            return Err(CredentialsError::HelperName { path, name });
        }
        let found = ask(&format!("docker-credential-{name}"), server(registry)).await?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(config.entry(registry).and_then(Entry::credentials))
}

fn read(path: &Path) -> Result<Config, CredentialsError> {
    let failed = |source| CredentialsError::Read {
        path: path.to_owned(),
        source,
    };
    let read = || {
        let mut text = Vec::new();
        let file = std::fs::File::open(path)?;
        io::Read::read_to_end(&mut io::Read::take(file, LARGEST), &mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => {
            serde_json::from_slice(&text).map_err(|_| CredentialsError::Malformed(path.to_owned()))
        }
        Err(error) if is_absent(&error) => Ok(Config::default()),
        Err(error) => Err(failed(error)),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// How docker calls a registry.
fn server(registry: &str) -> &str {
    match registry {
        "docker.io" | "index.docker.io" => DOCKER_HUB,
        registry => registry,
    }
}

/// Asks a helper.
async fn ask(program: &str, server: &str) -> Result<Option<Credentials>, CredentialsError> {
    let start = |error| CredentialsError::Start(program.to_owned(), error);
    let mut command = Command::new(program);
    command.arg("get").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(start)?;
    let input = child.stdin.take();
    let output = child.stdout.take();
    let asked = async {
        if let Some(mut input) = input {
            // One that reads nothing says why.
            let _ = input.write_all(format!("{server}\n").as_bytes()).await;
        }
        let mut text = Vec::new();
        if let Some(output) = output {
            output.take(LIMIT).read_to_end(&mut text).await?;
        }
        Ok::<_, io::Error>((text, child.wait().await?))
    };
    let asked = timeout(HELPER, asked).await;
    let asked = asked.map_err(|_| CredentialsError::Late(program.to_owned()))?;
    let asked = asked.map_err(start)?;
    if !asked.1.success() {
        // It has none, which it says on either stream.
        return Ok(None);
    }
    let given: Given = serde_json::from_slice(&asked.0)
        .map_err(|_| CredentialsError::Unknown(program.to_owned()))?;
    Ok(Some(match given.user.as_str() {
        TOKEN => Credentials::Identity(given.secret),
        _ => Credentials::Password(given.user, given.secret),
    }))
}

impl Config {
    /// The helper for a registry.
    fn helper(&self, registry: &str) -> Option<&str> {
        let own = self
            .helpers
            .iter()
            .find(|(name, _)| host_in(name) == host_in(registry));
        let name = own.map_or(&self.store, |(_, name)| name);
        Some(name.as_str()).filter(|name| !name.is_empty())
    }

    fn entry(&self, registry: &str) -> Option<&Entry> {
        let mut all = self.auths.iter();
        let found = all.find(|(name, _)| host_in(name) == host_in(registry));
        found.map(|(_, entry)| entry)
    }
}

impl Entry {
    fn credentials(&self) -> Option<Credentials> {
        if !self.registrytoken.is_empty() {
            return Some(Credentials::Bearer(self.registrytoken.clone()));
        }
        if !self.identitytoken.is_empty() {
            return Some(Credentials::Identity(self.identitytoken.clone()));
        }
        if !self.username.is_empty() {
            let password = self.password.clone();
            return Some(Credentials::Password(self.username.clone(), password));
        }
        let login = Login::decode(&self.auth)?;
        Some(Credentials::Password(login.user, login.password))
    }
}

impl Credentials {
    /// The header of basic authentication.
    pub(super) fn basic(&self) -> Option<HeaderValue> {
        let Self::Password(user, password) = self else {
            return None;
        };
        basic(user, password)
    }

    /// The header of a token for the registry itself.
    pub(super) fn bearer(&self) -> Option<HeaderValue> {
        let Self::Bearer(token) = self else {
            return None;
        };
        bearer(token)
    }
}

/// Without any of it.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// Without any of it.
impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entry")
    }
}

#[cfg(test)]
mod tests;
