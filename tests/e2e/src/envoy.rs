//! A real Envoy as a child process: start, wait until it is ready, stop.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

use crate::client::Client;

/// Envoy's worker threads in tests: two, so that state must be shared.
pub const CONCURRENCY: &str = "2";

/// A running Envoy.
pub struct Envoy {
    child: Child,
    /// Where clients connect.
    pub gateway: SocketAddr,
    /// The admin page.
    pub admin: SocketAddr,
    /// Its log file.
    pub log: PathBuf,
}

/// The project's root folder.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A port that was free a moment ago.
///
/// # Errors
/// When loopback has none left.
pub fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// A new folder for one run's files, under `target/`.
///
/// # Errors
/// When it cannot be made.
pub fn scratch(name: &str) -> Result<PathBuf> {
    let folder = root()
        .join("target/e2e")
        .join(format!("{name}-{}", free_port()?.port()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Runs `berth render envoy` from `dist/`.
///
/// # Errors
/// When the config is not valid or `scripts/build` was not run.
pub async fn render(config: &Path, gateway: SocketAddr, admin: SocketAddr, more: &[&str]) -> Result<String> {
    let berth = root().join("dist/berth");
    let output = Command::new(&berth)
        .args(["render", "envoy", "--config"])
        .arg(config)
        .args([
            "--listen",
            &gateway.to_string(),
            "--admin",
            &admin.to_string(),
            "--wasm",
        ])
        .arg(root().join("dist"))
        .args(more)
        .output()
        .await
        .with_context(|| format!("cannot run {}: run scripts/build first", berth.display()))?;
    if !output.status.success() {
        bail!("berth render failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}

impl Envoy {
    /// Starts Envoy with a whole configuration.
    ///
    /// # Errors
    /// When it ends or is not ready within 30 s; the message carries its log.
    pub async fn start(
        folder: &Path,
        yaml: &str,
        gateway: SocketAddr,
        admin: SocketAddr,
        environment: &[(&str, &str)],
    ) -> Result<Self> {
        let file = folder.join("envoy.yaml");
        fs::write(&file, yaml)?;
        let log = folder.join("envoy.log");
        let child = Command::new(binary().await?)
            .args([
                "--concurrency",
                CONCURRENCY,
                "--disable-hot-restart",
                "--log-level",
                "warning",
            ])
            .args(["--file-flush-interval-msec", "100"])
            .args(["--component-log-level", "wasm:info", "-c"])
            .arg(&file)
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start Envoy")?;
        let mut envoy = Self {
            child,
            gateway,
            admin,
            log,
        };
        envoy.ready().await?;
        Ok(envoy)
    }

    async fn ready(&mut self) -> Result<()> {
        let admin = Client::new(self.admin);
        for _ in 0..600 {
            if let Some(status) = self.child.try_wait()? {
                bail!("Envoy ended with {status}:\n{}", self.log_text());
            }
            if admin.get("/ready").await.is_ok_and(|answer| answer.status == 200) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("Envoy is not ready after 30 s:\n{}", self.log_text())
    }

    /// What it logged so far.
    #[must_use]
    pub fn log_text(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// A client for its gateway.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(self.gateway)
    }

    /// A counter or gauge by its full name; `None` when it does not exist.
    ///
    /// # Errors
    /// When the admin page does not answer.
    pub async fn stat(&self, name: &str) -> Result<Option<u64>> {
        let answer = Client::new(self.admin).get(&format!("/stats?filter=^{name}$")).await?;
        Ok(answer
            .text()
            .trim()
            .rsplit_once(": ")
            .and_then(|(_, value)| value.parse().ok()))
    }

    /// All stats whose name contains `part`, as the admin page prints them.
    ///
    /// # Errors
    /// When the admin page does not answer.
    pub async fn stats(&self, part: &str) -> Result<String> {
        Ok(Client::new(self.admin)
            .get(&format!("/stats?filter={part}"))
            .await?
            .text())
    }

    /// Waits until `probe` holds; the bound is on tries, not on luck.
    ///
    /// # Errors
    /// When it never holds within 20 s; the message names what was waited for.
    pub async fn until<F>(&self, what: &str, mut probe: impl FnMut() -> F) -> Result<()>
    where
        F: Future<Output = Result<bool>>,
    {
        for _ in 0..400 {
            if probe().await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("waited 20 s for {what}; Envoy's log:\n{}", self.log_text())
    }

    /// CPU time of the process so far, user and system, in clock ticks (Linux).
    #[must_use]
    pub fn cpu_ticks(&self) -> Option<u64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id()?)).ok()?;
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    }

    /// Ends it and waits.
    ///
    /// # Errors
    /// When the process cannot be ended.
    pub async fn stop(mut self) -> Result<()> {
        self.child.kill().await.context("cannot end Envoy")
    }
}

/// Has Envoy check a configuration without serving.
///
/// # Errors
/// When it does not accept it; the message is Envoy's.
pub async fn validate(yaml: &Path) -> Result<()> {
    let output = Command::new(binary().await?)
        .args(["--mode", "validate", "--log-level", "warning", "-c"])
        .arg(yaml)
        .output()
        .await?;
    if !output.status.success() {
        bail!(
            "{} is not valid:\n{}",
            yaml.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Path of the pinned Envoy, fetched once by `scripts/envoy`.
async fn binary() -> Result<PathBuf> {
    let output = Command::new(root().join("scripts/envoy"))
        .stderr(Stdio::inherit())
        .output()
        .await?;
    if !output.status.success() {
        bail!("scripts/envoy could not provide an Envoy");
    }
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}
