//! `evenkeel steer`.

mod show;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_apply::StateDirectory;
use evenkeel_apply::privileges::keep_only;
use evenkeel_files::Stamp;
use evenkeel_host::{Capability, Scope, is_process_number};
use evenkeel_model::text::{excerpt, path_text};
use evenkeel_receive::policy::PolicyFile;
use evenkeel_steer::{
    Backend, FlowSource, Interface, ObserveOptions, Observer, Planned, Session, SessionOptions, SteerError,
    XdpBackend, XdpMode,
};

use crate::arguments::{BackendChoice, BaselineChoice, SessionFormat, SteerOptions};
use crate::exit::{Exit, Failure, print};
use crate::listed_flows;
use crate::live::{
    End, NAP, Screen, guardian, interrupted, require, restored, say, stop_if_interrupted, unsettled,
};
use crate::nic;
use crate::output;
use crate::progress::with_progress;
use crate::revert::{tell_leftover, tell_managed};
use crate::search::configuration::{Configuration, hash_page};
use crate::search::{load_policy, reload_policy, require_memory, room};
use crate::signals::{self, Signals};
use crate::stream::Stream;

const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Time between the two observations of a plan. The plan computes rates from them.
const PLAN_INTERVAL: Duration = Duration::from_millis(500);
/// Memory of a plan's flow in the session and in the status, bytes. With JSON output, a flow has its JSON
/// text, too, and needs [`JSON_FLOW_BYTES`]. Both figures exclude the search.
const FLOW_BYTES: usize = 300;
const JSON_FLOW_BYTES: usize = 560;
/// Memory of a plan's filter in JSON, as fields and as text, bytes.
const JSON_FILTER_BYTES: usize = 900;
const XDP_MODEL: &str = "xdp-cpumap";
const XDP_HAS_A_MODEL: &str =
    "XDP steering works only with the model xdp-cpumap; use other models with --backend ntuple or --plan";
/// The model of NICs that only hash, and of RPS.
const RPS_MODEL: &str = "rss-only";
const NTUPLE_MODEL: &str = "ntuple";

pub fn steer(options: &SteerOptions) -> Result<Exit, Failure> {
    refuse_ignored(options)?;
    let policy = WatchedPolicy::load(&options.policy)?;
    let is_listed = options.listed.flows.is_some() || options.listed.generate.is_some();
    if options.plan && options.model.is_some() && is_listed {
        // See `dev_valid_name` (net/core/dev.c).
        let is_name = |name: &String| {
            let is_odd = |one: char| one.is_whitespace() || one.is_control() || matches!(one, '/' | ':');
            (1..16).contains(&name.len()) && !name.contains(is_odd) && !matches!(name.as_str(), "." | "..")
        };
        if let Some(name) = options.interface.as_ref().filter(|name| !is_name(name)) {
            let message = format!(
                "'{}' is not the name of an interface; use 1 to 15 bytes, without '/', ':' and spaces",
                excerpt(name)
            );
            return Err(Failure::new(Exit::Usage, message));
        }
        // The plan needs only the model and the flows, so it reads nothing of this host.
        return plan(options, &Interface::of_model(options.interface.as_deref()), &policy.file);
    }
    let Some(name) = &options.interface else {
        let message =
            "name an interface; it may be omitted only with --plan, --model, and --flows or --generate";
        return Err(Failure::new(Exit::Usage, message));
    };
    if !options.plan {
        require(&[Capability::NetAdmin], "steering")?;
    }
    let interface = Interface::find(name).map_err(failure)?;
    if options.plan {
        tell_managed(name, "this plan starts from the settings of that session");
        return plan(options, &interface, &policy.file);
    }
    // Catch signals before attaching a program, so that no signal leaves a change behind.
    let signals = Signals::catch()?;
    output::detach();
    let source = FlowSource::Observed(Box::new(observer(options, &interface)?));
    stop_if_interrupted(&signals)?;
    let backend = backend(options, &interface, &policy.file)?;
    let session_options = SessionOptions { interval: options.interval, once: options.once };
    let session =
        Session::start(&interface, backend, source, &policy.file, session_options).map_err(failure)?;
    if session.backend() != "xdp" {
        // The other back ends have no BPF program. Keep only the capabilities to change settings, and to
        // read policies and the sockets of other namespaces.
        let kept =
            [Capability::NetAdmin, Capability::SysAdmin, Capability::SysPtrace, Capability::DacOverride];
        keep_only(&kept)
            .map_err(|error| Failure::new(Exit::Failed, format!("cannot drop privileges: {error}")))?;
    }
    // A signal here leaves nothing to restore: the kernel detaches the program when its descriptors are
    // closed, and the back ends change settings only with the first search.
    if signals.came() {
        return Err(interrupted(&[(name.clone(), session.finish().map_err(failure)?)]));
    }
    manage(session, policy, options, &signals)
}

/// Returns an error for options that the command would ignore.
pub fn refuse_ignored(options: &SteerOptions) -> Result<(), Failure> {
    let is_listed = options.listed.flows.is_some() || options.listed.generate.is_some();
    let is_another_model = options.model.as_deref().is_some_and(|model| model != XDP_MODEL);
    let message = if options.plan && options.format == SessionFormat::Jsonl {
        "--format jsonl is for a session; use --format json with --plan"
    } else if is_listed && !options.plan {
        "--flows and --generate are for a plan; use them with --plan"
    } else if options.plan && options.model.is_some() && options.backend != BackendChoice::Auto {
        "--backend has no effect on a plan for a model; leave out --backend or --model"
    } else if options.backend == BackendChoice::Xdp && is_another_model {
        XDP_HAS_A_MODEL
    } else if options.backend == BackendChoice::Rps && options.model.is_some() {
        "--model has no effect with RPS; remove --model, or use another --backend"
    } else {
        return Ok(());
    };
    Err(Failure::new(Exit::Usage, message))
}

fn observer(options: &SteerOptions, interface: &Interface) -> Result<Observer, Failure> {
    let observe = ObserveOptions { scope: scope(&options.namespaces)?, idle: options.idle };
    Observer::open(interface, observe).map_err(failure)
}

fn failure(error: SteerError) -> Failure {
    Failure::with_causes(error.cause().into(), &error)
}

/// Returns the namespaces whose sockets the session reads. Returns an error if this process lacks the
/// capabilities to find or enter them.
fn scope(names: &[String]) -> Result<Scope, Failure> {
    if names.is_empty() {
        return Ok(Scope::Own);
    }
    let is_all = names.iter().any(|name| name == "all");
    let has_processes = names.iter().any(|name| is_process_number(name));
    let needed: &[Capability] = match is_all || has_processes {
        true => &[Capability::SysAdmin, Capability::SysPtrace],
        false => &[Capability::SysAdmin],
    };
    require(needed, "--netns")?;
    Ok(if is_all { Scope::All } else { Scope::Named(names.to_vec()) })
}

/// Returns the CPUs for XDP, RPS or a plan, one per queue.
fn processors(options: &SteerOptions, interface: &Interface) -> Result<Vec<u32>, Failure> {
    let Some(queues) = options.queues.map(usize::from) else { return Ok(interface.processors.clone()) };
    if options.plan && options.model.is_some() {
        // The flows belong to this host, but the NIC does not: drivers assign queues to CPUs
        // round-robin.
        return Ok(interface.processors.iter().copied().cycle().take(queues).collect());
    }
    if queues > interface.processors.len() {
        let message = format!(
            "--queues {queues}: XDP and RPS use a processor for each queue, and the number of online \
             processors is {online}; use at most {online} queues",
            online = interface.processors.len()
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    Ok(interface.processors[..queues].to_vec())
}

fn backend(
    options: &SteerOptions,
    interface: &Interface,
    policy: &PolicyFile,
) -> Result<Box<dyn Backend>, Failure> {
    let takes_rules = || interface.takes_rules().map_err(failure);
    let choice = match options.backend {
        // A baseline needs the XDP program.
        BackendChoice::Auto if options.baseline.is_none() && takes_rules()? => BackendChoice::Ntuple,
        BackendChoice::Auto => BackendChoice::Xdp,
        choice => choice,
    };
    if choice != BackendChoice::Ntuple && options.source.is_given() {
        return Err(Failure::new(
            Exit::Usage,
            "--nic-dir has an effect only with --plan or the back end ntuple; leave out --nic-dir",
        ));
    }
    if choice == BackendChoice::Ntuple {
        return ntuple(options, interface);
    }
    let fixed = if choice == BackendChoice::Rps { RPS_MODEL } else { XDP_MODEL };
    if let Some(path) = nic::own_file(fixed, &options.source)? {
        let message = format!(
            "{}: this model has an effect only with --plan; unset EVENKEEL_NIC_DIR, or rename the file",
            path_text(&path)
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    if choice == BackendChoice::Rps {
        return rps(options, interface, policy);
    }
    if options.model.as_deref().is_some_and(|model| model != XDP_MODEL) {
        return Err(Failure::new(Exit::Usage, XDP_HAS_A_MODEL));
    }
    let mode = match options.baseline {
        None => XdpMode::Policy,
        Some(BaselineChoice::Hash) => XdpMode::Hash,
        Some(BaselineChoice::Pass) => XdpMode::Pass,
    };
    let processors = processors(options, interface)?;
    // XDP changes no setting, but the settings of a killed run would distort the result.
    let leftovers = interface.put_back_leftovers(&StateDirectory::from_environment()).map_err(failure)?;
    leftovers.iter().for_each(tell_leftover);
    Ok(Box::new(XdpBackend::attach(interface, &processors, mode).map_err(failure)?))
}

fn ntuple(options: &SteerOptions, interface: &Interface) -> Result<Box<dyn Backend>, Failure> {
    if options.baseline.is_some() {
        return Err(Failure::new(Exit::Usage, "--baseline is for XDP: use it with --backend xdp"));
    }
    let model = nic::load(options.model.as_deref().unwrap_or(NTUPLE_MODEL), &options.source)?;
    let (backend, leftover) = evenkeel_steer::live_ntuple(
        interface,
        &model,
        options.queues,
        &StateDirectory::from_environment(),
        guardian(),
    )
    .map_err(failure)?;
    leftover.iter().for_each(tell_leftover);
    Ok(backend)
}

fn rps(
    options: &SteerOptions,
    interface: &Interface,
    policy: &PolicyFile,
) -> Result<Box<dyn Backend>, Failure> {
    if options.baseline.is_some() || options.model.is_some() {
        let message = "--baseline and --model are not for RPS; leave them out, or use another --backend";
        return Err(Failure::new(Exit::Usage, message));
    }
    let (backend, leftover) = evenkeel_steer::live_rps(
        interface,
        &processors(options, interface)?,
        policy.name.contains("locality"),
        signals::came,
        &StateDirectory::from_environment(),
        guardian(),
    )
    .map_err(failure)?;
    leftover.iter().for_each(tell_leftover);
    Ok(backend)
}

/// Returns the model for a session on this host's interface. Returns an error if the interface lacks a
/// feature that the model needs.
fn able_model(options: &SteerOptions, interface: &Interface) -> Result<&'static str, SteerError> {
    let prefers_rules = || Ok::<bool, SteerError>(options.baseline.is_none() && interface.takes_rules()?);
    match options.backend {
        BackendChoice::Auto if prefers_rules()? => Ok(NTUPLE_MODEL),
        BackendChoice::Ntuple => interface.check_rules().map(|()| NTUPLE_MODEL),
        BackendChoice::Rps => evenkeel_steer::check_rps(interface).map(|()| RPS_MODEL),
        BackendChoice::Auto | BackendChoice::Xdp => interface.check_xdp().map(|()| XDP_MODEL),
    }
}

fn plan(options: &SteerOptions, interface: &Interface, policy: &PolicyFile) -> Result<Exit, Failure> {
    let name = match &options.model {
        Some(name) => name.as_str(),
        None => able_model(options, interface).map_err(failure)?,
    };
    let model = nic::load(name, &options.source)?;
    let (processors, note) = match name {
        // The CPUs are unknown if the NIC and the flows belong to another host.
        _ if interface.processors.is_empty() => (Vec::new(), None),
        // Use the queues of this host's NIC.
        NTUPLE_MODEL if options.model.is_none() => {
            interface.queue_processors(options.queues).map_err(failure)?
        }
        _ => (processors(options, interface)?, None),
    };
    let queues = match processors.len() {
        0 => options.queues.unwrap_or(model.queues()),
        queues => u16::try_from(queues).unwrap_or(u16::MAX),
    };
    let planned = Planned::new(&model, queues, &processors, note).map_err(failure)?;
    // RPS has neither filters nor RSS settings. Its remarks name the CPUs.
    let is_rps = options.backend == BackendChoice::Rps;
    let planned = match name {
        _ if options.model.is_some() => planned,
        NTUPLE_MODEL => planned.of_backend("ntuple"),
        XDP_MODEL => planned.of_backend("xdp"),
        _ => planned.of_backend("rps"),
    };
    let planned = if is_rps { planned.of_rps(policy.name.contains("locality")) } else { planned };
    let fits = |flows: usize| {
        let filters = room(&model).min(flows);
        let shown = match options.format {
            SessionFormat::Json => flows * JSON_FLOW_BYTES + filters * JSON_FILTER_BYTES,
            SessionFormat::Table | SessionFormat::Jsonl => flows * FLOW_BYTES,
        };
        require_memory(flows, filters, shown)
    };
    let source = match listed_flows::read(&options.listed, policy, queues, fits)? {
        Some(flows) => FlowSource::Listed(flows),
        None => {
            let mut observer = observer(options, interface)?;
            let nothing = std::collections::HashMap::new();
            observer.look(&nothing).map_err(failure)?;
            std::thread::sleep(PLAN_INTERVAL);
            FlowSource::Observed(Box::new(observer))
        }
    };
    let session_options = SessionOptions { interval: options.interval, once: true };
    let mut session =
        Session::start(interface, Box::new(planned), source, policy, session_options).map_err(failure)?;
    let progress = session.progress();
    with_progress(|| (progress.fraction(), "search".to_owned()), || session.tick()).map_err(failure)?;
    let status = session.status();
    match options.format {
        SessionFormat::Table => {
            let filters = session.shell().unwrap_or_default();
            // With XDP, Evenkeel's program computes the hash: the device needs no command for its key.
            let device = Some(options.interface.as_deref().unwrap_or("IFACE")).filter(|_| name != XDP_MODEL);
            let hash = if is_rps { String::new() } else { hash_page(session.search(), device).finish() };
            print(&format!("{}\n{filters}{hash}", show::status(&status)))?;
        }
        SessionFormat::Json | SessionFormat::Jsonl => {
            let configuration = Some(Configuration::of(session.search())).filter(|_| !is_rps);
            print(&show::json(&status, configuration, None))?;
        }
    }
    Ok(Exit::Done)
}

const STAYS: &str = "the previous policy stays in force";

/// A policy that is reloaded when its file changes.
struct WatchedPolicy {
    /// The path; `None` if the policy is built in, or came through a pipe.
    path: Option<PathBuf>,
    stamps: Option<Vec<Stamp>>,
    file: PolicyFile,
    /// The reason why the present file is not in use.
    error: Option<String>,
}

/// Returns the stamps of a policy's file and of its scripts.
///
/// # Errors
/// Returns the first of these files whose metadata cannot be read.
fn stamps(path: &Path, scripts: &[String]) -> Result<Vec<Stamp>, PathBuf> {
    let scripts = scripts.iter().map(Path::new);
    let stamp = |path: &Path| Stamp::of(path).map_err(|_| path.to_owned());
    [path].into_iter().chain(scripts).map(stamp).collect()
}

impl WatchedPolicy {
    fn load(name: &str) -> Result<Self, Failure> {
        let path = Some(PathBuf::from(name))
            .filter(|path| PolicyFile::built_in(name).is_none() && Stamp::is_followed(path));
        let file = load_policy(name)?;
        let stamps = path.as_deref().and_then(|path| stamps(path, &file.script_files).ok());
        Ok(Self { file, path, stamps, error: None })
    }

    /// Reloads a changed policy. Returns the policy that the new policy replaces. While the file is
    /// invalid or missing, keeps the current policy.
    fn refresh(&mut self) -> Option<PolicyFile> {
        let path = self.path.as_ref()?;
        let now = match stamps(path, &self.file.script_files) {
            Ok(now) => now,
            Err(missing) => {
                if self.stamps.take().is_some() {
                    let error = format!("{} no longer exists; {STAYS}", path_text(&missing));
                    say(&error);
                    self.error = Some(error);
                }
                return None;
            }
        };
        if Some(&now) == self.stamps.as_ref() {
            return None;
        }
        self.stamps = Some(now);
        match reload_policy(path) {
            Ok(file) => {
                let before = std::mem::replace(&mut self.file, file);
                // The new policy may have other scripts.
                self.stamps = stamps(path, &self.file.script_files).ok().or(self.stamps.take());
                self.error = None;
                Some(before)
            }
            Err(error) => {
                self.error = Some(format!("{}; {STAYS}", error.message()));
                error.tell();
                say(STAYS);
                None
            }
        }
    }

    /// Returns to the previous policy, because the session refuses the present one.
    fn refuse(&mut self, error: &SteerError, old: PolicyFile) {
        let error = format!("{error}; {STAYS}");
        say(&error);
        (self.file, self.error) = (old, Some(error));
    }
}

fn manage(
    mut session: Session,
    mut policy: WatchedPolicy,
    options: &SteerOptions,
    signals: &Signals,
) -> Result<Exit, Failure> {
    let began = Instant::now();
    say(&show::started(&session.status()));
    let mut stream = Stream::of(options.format);
    let end = watch(&mut session, &mut policy, options, signals, &mut stream);
    session.settle();
    let status = session.status();
    // Restore the settings before any error ends this function.
    let report = session.finish().map_err(failure)?;
    report.remarks(&status.interface).iter().for_each(|remark| say(remark));
    let unsettled = unsettled(&status.interface, &report);
    let end = match (end, &unsettled) {
        (Ok(end), _) => end,
        (Err(error), unsettled) => {
            if !report.is_empty() {
                say(&format!("{}: {report}", status.interface));
            }
            // Report settings that were not restored, too.
            if let Some(unsettled) = unsettled {
                unsettled.tell();
            }
            return Err(failure(error));
        }
    };
    match options.format {
        SessionFormat::Table => print(&show::status(&status))?,
        SessionFormat::Json => print(&show::json(&status, None, Some((&end, began.elapsed()))))?,
        SessionFormat::Jsonl => stream.end(&show::ended(&status, &end, began.elapsed(), &report))?,
    }
    end.conclude(unsettled, &format!("{}: ", status.interface), restored([&report]))
}

fn watch(
    session: &mut Session,
    policy: &mut WatchedPolicy,
    options: &SteerOptions,
    signals: &Signals,
    stream: &mut Stream,
) -> Result<End, SteerError> {
    let began = Instant::now();
    let mut checked = began;
    let mut screen = Screen::new();
    let mut told = false;
    // The previous policy, which is restored if the first search with a new policy fails.
    let mut before: Option<PolicyFile> = None;
    loop {
        if let Some(end) = End::due(signals, began, options.time) {
            return Ok(end);
        }
        if checked.elapsed() >= CHECK_INTERVAL {
            checked = Instant::now();
            let reason = session.check()?;
            stream.remarks(&session.take_remarks());
            if let Some(reason) = reason {
                return Ok(End::ForeignChange(reason));
            }
            if let Some(old) = policy.refresh() {
                match session.set_policy(&policy.file) {
                    Ok(()) => {
                        say("the policy was read again, as its file has changed");
                        before.get_or_insert(old);
                    }
                    Err(error) => policy.refuse(&error, old),
                }
            }
        }
        match session.tick() {
            Ok(None) => {}
            Ok(Some(step)) => {
                say(&show::step(&step, session.backend()));
                before = None;
            }
            // Only a search detects a script that never ends or that fails for a flow.
            Err(error @ SteerError::Search(_)) => {
                let Some(old) = before.take() else { return Err(error) };
                policy.refuse(&error, old);
                session.set_policy(&policy.file)?;
            }
            Err(SteerError::Stopped) => continue,
            Err(error) => return Err(error),
        }
        if !told {
            say("steered now; Ctrl-C or SIGTERM restores everything");
            let name = options.interface.as_deref().unwrap_or_default();
            stream.started(name, &show::devices(&session.status(), policy.error.as_deref()));
            told = true;
        }
        stream.status(signals, |seconds| {
            show::status_line(&session.status(), policy.error.as_deref(), seconds)
        });
        screen.draw(|| show::status(&session.status()));
        std::thread::sleep(NAP);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_missing_script_is_named_and_not_its_policy() {
        let place = tempfile::tempdir().unwrap();
        let named = |name: &str| place.path().join(name);
        let (policy, script) = (named("p.toml"), named("s.rhai"));
        std::fs::write(&policy, "").unwrap();
        std::fs::write(&script, "").unwrap();
        let scripts = [script.to_str().unwrap().to_owned()];
        assert_eq!(stamps(&policy, &scripts).unwrap().len(), 2);
        std::fs::remove_file(&script).unwrap();
        assert_eq!(stamps(&policy, &scripts).unwrap_err(), script);
        std::fs::remove_file(&policy).unwrap();
        assert_eq!(stamps(&policy, &scripts).unwrap_err(), policy);
    }
}
