//! The image server of a stack: the guest images, and what clients put into the folder `served` of
//! the stack, over HTTP with ranges and an entity tag.
//!
//! Invariant: it serves exactly these files, on loopback only, in the host's network namespace and
//! in the stack's on the same port. A guest image has its name in upper and lower case, any file has
//! it with any query.
//! Failure: an unreadable file is a 500 to that one request; a client that goes away costs one
//! thread.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use tiny_http::{Header, Method, Request, Response, Server, StatusCode};

use super::{Layout, netns};

/// What a `Range` header asks of a file.
#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// The whole file.
    Whole,
    /// Bytes from `start` on, `length` of them.
    Part { start: u64, length: u64 },
    /// Bytes that do not exist.
    Unsatisfiable,
}

/// What is served.
#[derive(Debug)]
struct Served {
    images: Vec<PathBuf>,
    folder: PathBuf,
}

/// Starts serving `files` in both namespaces, on the port that they had before; returns the port.
pub(crate) fn serve(layout: &Layout, files: &[PathBuf], port: Option<u16>) -> Result<u16> {
    let address = ("127.0.0.1", port.unwrap_or(0));
    let outside = TcpListener::bind(address).context("listen on loopback")?;
    let port = outside.local_addr()?.port();
    let inside = netns::inside(&layout.netns_path(), || {
        TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("listen on port {port}"))
    })?;
    let files = Arc::new(Served {
        images: files.to_vec(),
        folder: layout.path("served"),
    });
    for listener in [outside, inside] {
        let server = Server::from_listener(listener, None).map_err(|error| anyhow!("{error}"))?;
        let files = Arc::clone(&files);
        std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || accept(&server, &files))?;
    }
    Ok(port)
}

fn accept(server: &Server, files: &Arc<Served>) {
    for request in server.incoming_requests() {
        let files = Arc::clone(files);
        // A client that stops reading must not hold up the next one.
        std::thread::spawn(move || answer(request, &files));
    }
}

fn answer(request: Request, files: &Served) {
    let Some(file) = files.named(request.url()) else {
        return report(request.respond(Response::empty(404)));
    };
    let outcome = if !matches!(request.method(), Method::Get | Method::Head) {
        request.respond(Response::empty(405))
    } else {
        match open(&request, &file) {
            Ok(response) => request.respond(response),
            Err(error) => {
                request.respond(Response::from_string(format!("{error:#}\n")).with_status_code(500))
            }
        }
    };
    report(outcome);
}

fn report(outcome: std::io::Result<()>) {
    if let Err(error) = outcome {
        eprintln!("image server: {error}");
    }
}

impl Served {
    /// The file that an address means.
    fn named(&self, url: &str) -> Option<PathBuf> {
        let path = url.split('?').next().unwrap_or_default();
        let name = path.strip_prefix('/')?;
        let mut images = self.images.iter();
        let image = images.find(|file| {
            file.file_name()
                .is_some_and(|own| own.eq_ignore_ascii_case(name))
        });
        let is_plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
        let other = || self.folder.join(name);
        image
            .cloned()
            .or_else(|| is_plain.then(other).filter(|file| file.is_file()))
    }
}

fn open(request: &Request, path: &Path) -> Result<Response<Box<dyn Read + Send>>> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    let metadata = file.metadata()?;
    let size = metadata.len();
    let tag = format!(
        "\"{:x}-{:x}-{size:x}\"",
        metadata.mtime(),
        metadata.mtime_nsec()
    );
    let mut headers = vec![header("Accept-Ranges", "bytes")?, header("ETag", &tag)?];

    if value(request, "If-None-Match").is_some_and(|wanted| wanted == tag) {
        return Ok(Response::new(
            StatusCode(304),
            headers,
            Box::new(std::io::empty()),
            Some(0),
            None,
        ));
    }
    // A part of another version of the file is of no use to the client.
    let same_version = value(request, "If-Range").is_none_or(|wanted| wanted == tag);
    let range = value(request, "Range").filter(|_| same_version);
    let (status, start, length) = match range.map_or(Range::Whole, |range| parse_range(range, size))
    {
        Range::Whole => (200, 0, size),
        Range::Part { start, length } => {
            headers.push(header(
                "Content-Range",
                &format!("bytes {start}-{}/{size}", start + length - 1),
            )?);
            (206, start, length)
        }
        Range::Unsatisfiable => {
            headers.push(header("Content-Range", &format!("bytes */{size}"))?);
            (416, 0, 0)
        }
    };
    file.seek(SeekFrom::Start(start))?;
    let body: Box<dyn Read + Send> = Box::new(file.take(length));
    let response = Response::new(
        StatusCode(status),
        headers,
        body,
        Some(usize::try_from(length)?),
        None,
    );
    // Clients want a length, not chunks.
    Ok(response.with_chunked_threshold(usize::MAX))
}

fn header(name: &str, value: &str) -> Result<Header> {
    Header::from_bytes(name, value).map_err(|()| anyhow!("header {name}: {value}"))
}

fn value<'a>(request: &'a Request, name: &'static str) -> Option<&'a str> {
    let header = request
        .headers()
        .iter()
        .find(|header| header.field.equiv(name))?;
    Some(header.value.as_str())
}

/// A header that makes no sense, or that requests several ranges, counts as absent: both are legal.
fn parse_range(header: &str, size: u64) -> Range {
    let Some((first, last)) = header
        .strip_prefix("bytes=")
        .and_then(|range| range.split_once('-'))
    else {
        return Range::Whole;
    };
    let bounds = match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.saturating_add(1).min(size)),
        (Ok(first), Err(_)) if last.trim().is_empty() => (first, size),
        (Err(_), Ok(count)) if first.trim().is_empty() => (size.saturating_sub(count), size),
        _ => return Range::Whole,
    };
    if bounds.0 >= bounds.1 {
        return Range::Unsatisfiable;
    }
    Range::Part {
        start: bounds.0,
        length: bounds.1 - bounds.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_header_selects_bytes_that_exist() {
        let part = |start, length| Range::Part { start, length };
        for (header, want) in [
            ("bytes=0-0", part(0, 1)),
            ("bytes=10-19", part(10, 10)),
            ("bytes=90-", part(90, 10)),
            ("bytes=90-1000", part(90, 10)),
            ("bytes=-30", part(70, 30)),
            ("bytes=-1000", part(0, 100)),
            ("bytes=100-", Range::Unsatisfiable),
            ("bytes=-0", Range::Unsatisfiable),
            ("bytes=5-3", Range::Whole),
            ("bytes=0-1,5-6", Range::Whole),
            ("bytes=a-b", Range::Whole),
            ("lines=0-1", Range::Whole),
            ("bytes=0-18446744073709551615", part(0, 100)),
        ] {
            assert_eq!(parse_range(header, 100), want, "{header}");
        }
    }

    #[test]
    fn a_file_has_its_name_with_any_query_and_nothing_else_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other.img");
        std::fs::write(&other, "x").unwrap();
        let served = Served {
            images: ["/x/hello.qcow2", "/x/debian.qcow2"]
                .map(PathBuf::from)
                .into(),
            folder: folder.path().to_owned(),
        };
        let second = Some(served.images[1].clone());
        assert_eq!(served.named("/debian.qcow2"), second);
        assert_eq!(served.named("/DEBIAN.qcow2?a=/b"), second);
        assert_eq!(served.named("/other.img?a"), Some(other));
        for other in ["/", "/x/debian.qcow2", "debian.qcow2", "/debian.raw", "/.."] {
            assert_eq!(served.named(other), None, "{other}");
        }
    }

    #[test]
    fn nothing_of_an_empty_file_can_be_selected() {
        assert_eq!(parse_range("bytes=0-", 0), Range::Unsatisfiable);
    }
}
