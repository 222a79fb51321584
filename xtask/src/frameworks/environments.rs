//! A virtual environment for each list of requirements, below `target/frameworks`, kept between runs.
//!
//! The lists name every package with its version, and pip resolves no dependencies. So an environment is the same
//! everywhere and has nothing that its programs do not load. Packages that PyPI has only as source are compiled in
//! their environment. Programs that only Debian has are unpacked beside the environments.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use super::cases::Framework;
use crate::clients;
use crate::steps::run;
use crate::workspace::Workspace;

/// Options of pip: the lists are complete, and modules that are never imported need no compilation.
const OPTIONS: [&str; 3] = ["--no-deps", "--no-compile", "--no-cache-dir"];

/// Environments that also see the packages of another one.
const ON_TOP_OF: &[(&str, &str)] = &[("vllm", "pytorch"), ("onnxruntime", "pytorch")];

/// Packages that PyPI has only as source: the environment to compile them in, and the name and version for pip.
const COMPILED: &[(&str, &str)] = &[("pycuda", "pycuda==2026.1")];

/// The base of an environment, if it has one.
fn base(name: &str) -> Option<&'static str> {
    let found = ON_TOP_OF.iter().find(|(top, _)| *top == name);
    found.map(|(_, base)| *base)
}

pub(crate) struct PythonEnvironments {
    /// The folder with the lists and programs.
    sources: PathBuf,
    /// The folder with one folder for each environment.
    folder: PathBuf,
    /// The folder with the simulated driver's library, to link compiled packages with.
    driver: PathBuf,
    /// The result of each attempt: `None`, or what is missing.
    tried: RefCell<BTreeMap<&'static str, Option<String>>>,
}

impl PythonEnvironments {
    pub(crate) fn new(workspace: &Workspace, staged: &Path) -> Self {
        Self {
            sources: workspace.root.join("tests/frameworks"),
            folder: workspace.target.join("frameworks"),
            driver: staged.join("lib/apportion/sim"),
            tried: RefCell::default(),
        }
    }

    /// Creates what a framework needs; `Err` says what is missing. System programs come first, because they are small.
    pub(crate) fn make_all(&self, framework: &Framework) -> Result<()> {
        framework
            .tools()
            .try_for_each(|name| self.tool(name).map(drop))?;
        framework
            .environments()
            .try_for_each(|name| self.make(name))
    }

    /// Creates an environment, unless it exists; `Err` says what is missing.
    pub(crate) fn make(&self, name: &'static str) -> Result<()> {
        if let Some(tried) = self.tried.borrow().get(name) {
            return tried
                .as_ref()
                .map_or(Ok(()), |missing| Err(anyhow!("{missing}")));
        }
        let base = base(name);
        let made = base
            .map_or(Ok(()), |base| self.make(base))
            .and_then(|()| self.install(name, base));
        let missing = made.as_ref().err().map(|missing| format!("{missing:#}"));
        self.tried.borrow_mut().insert(name, missing);
        made
    }

    fn install(&self, name: &str, base: Option<&str>) -> Result<()> {
        let wanted = self.sources.join(format!("requirements-{name}.txt"));
        let wanted = fs::canonicalize(&wanted)
            .with_context(|| format!("{} is missing", wanted.display()))?;
        eprintln!(
            "environment {name}: looking for what {} lists",
            wanted.display()
        );
        let options = OPTIONS.map(AsRef::as_ref);
        clients::environment(&self.folder.join(name), &wanted, &options)?;
        if let Some((_, package)) = COMPILED
            .iter()
            .find(|(environment, _)| *environment == name)
        {
            self.compile(name, package)?;
        }
        let Some(base) = base else { return Ok(()) };
        let path = self.packages(name)?.join("base.pth");
        let base = self.packages(base)?;
        fs::write(&path, format!("{}\n", base.display()))
            .with_context(|| format!("failed to write {}", path.display()))
    }

    /// Compiles a package in its environment, unless that is done. It reads its settings from a file in the home
    /// folder, so it gets its own home folder.
    fn compile(&self, name: &str, package: &str) -> Result<()> {
        let home = self.folder.join(name).join("home");
        let compiled = home.join("compiled.txt");
        if fs::read_to_string(&compiled).is_ok_and(|text| text == package) {
            return Ok(());
        }
        let headers = self.packages(name)?.join("nvidia/cu13/include");
        let driver = fs::canonicalize(&self.driver)
            .with_context(|| format!("{} is missing", self.driver.display()))?;
        let settings = format!(
            "CUDA_ROOT = ''\nCUDA_INC_DIR = [{headers:?}]\nCUDADRV_LIB_DIR = [{driver:?}]\nCUDADRV_LIBNAME = ['cuda']\n\
             CUDART_LIBNAME = []\nCURAND_LIBNAME = []\nCUDA_ENABLE_CURAND = False\nCXXFLAGS = ['-O0', '-w']\n"
        );
        let write = |file: &Path, text: &str| {
            fs::write(file, text).with_context(|| format!("failed to write {}", file.display()))
        };
        fs::create_dir_all(&home).with_context(|| format!("failed to make {}", home.display()))?;
        write(&home.join(".aksetup-defaults.py"), &settings)?;
        eprintln!("environment {name}: compiling {package}, which takes some minutes");
        run(Command::new(self.python(name))
            .env("HOME", &home)
            .args(["-m", "pip", "install", "--quiet", "--no-build-isolation"])
            .args(["--disable-pip-version-check", "--no-binary", ":all:"])
            .args(OPTIONS)
            .arg(package))
        .with_context(|| format!("{package} does not compile here"))?;
        write(&compiled, package)
    }

    /// The Python of an environment.
    pub(crate) fn python(&self, name: &str) -> PathBuf {
        self.folder.join(name).join("bin/python")
    }

    /// The path of a test program.
    pub(crate) fn program(&self, file: &str) -> PathBuf {
        self.sources.join("programs").join(file)
    }

    /// The folder for what programs and frameworks write, such as compiled kernels.
    pub(crate) fn scratch(&self, name: &str) -> PathBuf {
        self.folder.join("scratch").join(name)
    }

    /// The folders of NVIDIA's libraries in an environment and its base. TensorFlow and ONNX Runtime load them by name
    /// only.
    pub(crate) fn nvidia_libraries(&self, name: &str) -> Vec<PathBuf> {
        let environments = [Some(name), base(name)];
        let packages = environments
            .into_iter()
            .flatten()
            .filter_map(|name| self.packages(name).ok());
        packages
            .flat_map(|packages| {
                let entries = fs::read_dir(packages.join("nvidia"))
                    .into_iter()
                    .flatten()
                    .flatten();
                let mut paths: Vec<_> = entries.map(|entry| entry.path().join("lib")).collect();
                paths.retain(|path| path.is_dir());
                paths.sort();
                paths
            })
            .collect()
    }

    /// A program of the system: the one in `PATH`, or what the Debian package of that name holds. The package is
    /// unpacked below the folder of the environments and not installed; `Err` says what is missing.
    pub(crate) fn tool(&self, name: &str) -> Result<PathBuf> {
        let path = env::var_os("PATH").unwrap_or_default();
        let unpacked = self.folder.join("debian").join(name);
        let installed = env::split_paths(&path)
            .chain([unpacked.join("usr/bin")])
            .map(|folder| folder.join(name));
        if let Some(program) = installed.into_iter().find(|program| program.is_file()) {
            return Ok(program);
        }
        fs::create_dir_all(&unpacked)
            .with_context(|| format!("failed to make {}", unpacked.display()))?;
        run(Command::new("apt-get")
            .args(["--quiet", "download", name])
            .current_dir(&unpacked))
        .with_context(|| {
            format!("no {name} in PATH, and no package of that name in apt's lists")
        })?;
        let entries = fs::read_dir(&unpacked)?.flatten();
        let mut packages = entries.map(|entry| entry.path());
        let package = packages
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .context("apt-get brought no package")?;
        run(Command::new("dpkg").arg("-x").arg(&package).arg(&unpacked))?;
        Ok(unpacked.join("usr/bin").join(name))
    }

    /// The folder that an environment's packages are in: its name contains Python's version.
    fn packages(&self, name: &str) -> Result<PathBuf> {
        let library = self.folder.join(name).join("lib");
        let entries = fs::read_dir(&library)
            .with_context(|| format!("failed to read {}", library.display()))?;
        let mut paths = entries
            .flatten()
            .map(|entry| entry.path().join("site-packages"));
        paths
            .find(|path| path.is_dir())
            .with_context(|| format!("no packages in {}", library.display()))
    }
}
