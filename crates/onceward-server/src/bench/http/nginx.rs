//! nginx as a reverse proxy on the same upstream: the yardstick for unprotected traffic.
//!
//! Set up as a careful operator would for this load: workers for every core, each with a socket of
//! its own so that connections are shared out evenly, connections to the upstream kept, no access
//! log. It is run only when it is installed.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::failure::Failure;

/// How long it may take until it accepts connections.
const READY_WITHIN: Duration = Duration::from_secs(10);
const READY_PAUSE: Duration = Duration::from_millis(10);

/// A running nginx; it is stopped when it is dropped.
pub(super) struct Nginx {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

impl Nginx {
    /// Starts it in front of an upstream; none when it is not installed.
    pub(super) async fn start(
        upstream: SocketAddr,
        folder: &Path,
    ) -> Result<Option<Self>, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            Failure::failed("bench.nginx", format!("nginx is installed but can't be run: {error}"))
        };
        let folder = folder.canonicalize().map_err(|error| failed(&error))?.join("nginx");
        std::fs::create_dir(&folder).map_err(|error| failed(&error))?;
        // It can't take port 0; this one was free a moment ago.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| failed(&error))?;
        let written = std::fs::write(folder.join("nginx.conf"), config(&folder, address, upstream));
        written.map_err(|error| failed(&error))?;
        let spawned = command(&folder).args(["-g", "daemon off;"]).spawn();
        let child = match spawned {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let mut nginx = Self { child, address, folder };
        let deadline = Instant::now() + READY_WITHIN;
        while TcpStream::connect(address).await.is_err() {
            let ended = nginx.child.try_wait().map_err(|error| failed(&error))?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(nginx.folder.join("error.log"));
                return Err(failed(&log.unwrap_or_else(|_| "it does not listen".into())));
            }
            tokio::time::sleep(READY_PAUSE).await;
        }
        Ok(Some(nginx))
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers are told by their master, not by us: a kill would leave them behind.
        let _ = command(&self.folder).args(["-s", "stop"]).status();
        let _ = self.child.wait();
    }
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new("nginx");
    command.arg("-p").arg(folder).args(["-c", "nginx.conf", "-e", "error.log"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn config(folder: &Path, address: SocketAddr, upstream: SocketAddr) -> String {
    let folder = folder.display();
    format!(
        "worker_processes auto;
pid {folder}/nginx.pid;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000000;
  upstream handler {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}
  server {{
    listen {address} reuseport;
    location / {{
      proxy_pass http://handler;
      proxy_http_version 1.1;
      proxy_set_header Connection \"\";
    }}
  }}
}}
"
    )
}
