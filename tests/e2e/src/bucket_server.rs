//! A real server that speaks S3, with TLS, inside a stack: it has one bucket, and one key.
//!
//! Invariant: what was stored outlives the server's program, which can be killed and started again at the same address.
//! Failure: a server that does not start is named with its log, which is among the logs of the stack.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::secure::Authority;
use crate::stack::Stack;
use crate::wait::eventually;

/// The bucket.
const BUCKET: &str = "backups";
const KEY: &str = "node";
/// Of the key: nothing but the server and the file of the node may have it.
const SECRET: &str = "9f2c7e11-secret-of-the-bucket";
const READY: Duration = Duration::from_secs(60);

/// The server, which ends with it.
#[derive(Debug)]
pub struct BucketServer {
    dir: PathBuf,
    address: String,
    child: Option<Child>,
}

impl BucketServer {
    /// Writes the files of a server; nothing runs yet.
    pub fn new(stack: &Stack) -> Result<Self> {
        let dir = stack.dir().join("s3");
        fs::create_dir_all(dir.join("data").join(BUCKET))?;
        let names = ["ca.pem", "server.pem", "server.key"];
        for (name, text) in names.into_iter().zip(Authority::new()?.for_server()?) {
            fs::write(dir.join(name), text)?;
        }
        // The port is free once the listener is gone.
        let address = stack.listen()?.local_addr()?.to_string();
        let server = Self {
            dir,
            address,
            child: None,
        };
        server.write_credentials(SECRET)?;
        Ok(server)
    }

    /// The target in the configuration of a daemon.
    pub fn target(&self, name: &str, bucket: &str) -> String {
        let file = |name: &str| self.dir.join(name).display().to_string();
        format!(
            "{name}=s3://{bucket}/of/tests?credentials={}&endpoint=https://{}&ca={}",
            file("credentials"),
            self.address,
            file("ca.pem")
        )
    }

    /// The bucket that there is.
    pub const fn bucket(&self) -> &'static str {
        BUCKET
    }

    /// The secret of the key.
    pub const fn secret(&self) -> &'static str {
        SECRET
    }

    /// Gives the node a secret.
    pub fn write_credentials(&self, secret: &str) -> Result<()> {
        let file = self.dir.join("credentials");
        let text =
            format!("[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n");
        fs::write(&file, text)?;
        Ok(fs::set_permissions(&file, Permissions::from_mode(0o600))?)
    }

    /// Starts the program.
    pub async fn start(&mut self, stack: &Stack) -> Result<()> {
        let file = |name: &str| self.dir.join(name).display().to_string();
        let log = stack.dir().join("log/versitygw.log");
        let output = File::create(&log).with_context(|| log.display().to_string())?;
        let mut command = stack.command_inside("versitygw")?;
        command
            .env("ROOT_ACCESS_KEY", KEY)
            .env("ROOT_SECRET_KEY", SECRET)
            .args(["--port", &self.address])
            .args(["--cert", &file("server.pem"), "--key", &file("server.key")])
            .args(["posix", &file("data")])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        self.child = Some(command.spawn().context("start versitygw")?);
        eventually(READY, "a server that speaks S3", || async {
            let said = fs::read_to_string(&log)?;
            ensure!(said.contains("listening on"), "{said}");
            Ok(())
        })
        .await
    }

    /// Kills the program.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// The files of the objects of a machine, below its own folder.
    pub fn objects(&self, vm: &str) -> Result<Vec<String>> {
        let folder = self.dir.join("data").join(BUCKET).join("of/tests").join(vm);
        let mut names = Vec::new();
        collect(&folder, &folder, &mut names)?;
        names.sort();
        Ok(names)
    }

    /// The file of an object.
    pub fn object(&self, vm: &str, name: &str) -> PathBuf {
        let machines = self.dir.join("data").join(BUCKET).join("of/tests");
        machines.join(vm).join(name)
    }
}

impl Drop for BucketServer {
    fn drop(&mut self) {
        // One that has ended needs no signal.
        let _ = self.kill();
    }
}

fn collect(root: &Path, folder: &Path, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, names)?;
        } else {
            let name = path.strip_prefix(root)?;
            names.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(())
}
