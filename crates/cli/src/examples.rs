//! The examples at the end of each command's `--help`; a test parses all of them.

pub const ALL: &str = "\
Examples:
  What is wrong with this host's network, and what fixes it?
    evenkeel check
  What does fair queue choice gain? Simulated, needs no root:
    evenkeel run titan-12-flows --on sim --quick
  Keep flows through an interface fair until Ctrl-C:
    evenkeel fair eth0

Exit codes:
    0  done
    1  an expectation is not met, check has a finding of high severity or finds leftovers
       of a killed run, compare --within does not hold, tune --apply could not make a
       change or losses increased, or status shows an interface that is neither as
       configured nor paused
    2  wrong usage, or an error in an input file
    3  this machine cannot run the command; the message names the missing part and what to do
    4  failed while running; everything is restored unless the message names an exception
  130  interrupted; everything is restored";

pub const RUN: &str = "\
Examples:
  A first look in the simulator, without root:
    evenkeel run titan-12-flows --on sim --quick
  Two variants on this machine's kernel, ten repeats each:
    evenkeel run titan-12-flows --variant cmax --variant dqa --repeat 10
  For a script:
    evenkeel run titan-12-flows --on sim --format json";

pub const SCENARIO: &str = "\
Examples:
  evenkeel scenario list
  evenkeel scenario show titan-12-flows
  evenkeel scenario check my-scenario.toml";

pub const SCENARIO_LIST: &str = "\
Examples:
  evenkeel scenario list
  evenkeel run titan-12-flows --on sim --quick";

pub const SCENARIO_SHOW: &str = "\
Examples:
  Settings, and what each variant changes:
    evenkeel scenario show titan-12-flows
  Print the file, as the start of your own scenario:
    evenkeel scenario show titan-12-flows --toml";

pub const SCENARIO_CHECK: &str = "\
Examples:
  evenkeel scenario check my-scenario.toml
  evenkeel scenario check one.toml two.toml";

pub const FAIR: &str = "\
Examples:
  Which flows share a queue? Changes nothing:
    evenkeel fair eth0 --observe --for 10s
  Which settings would change?
    evenkeel fair eth0 --plan
  Keep flows fair until Ctrl-C:
    evenkeel fair eth0

SIGTERM or the end of --for ends the command with exit code 0, Ctrl-C (SIGINT) or SIGHUP with 130.";

pub const SERVICE: &str = "\
Examples:
  Which options does each interface get? Changes nothing:
    evenkeel service --check /etc/evenkeel/evenkeel.toml
  Run in the foreground; SIGTERM restores everything:
    evenkeel service
  Restore the settings of eth0 until `resume`:
    evenkeel service pause eth0

SIGTERM ends the service with exit code 0, Ctrl-C (SIGINT) with 130; SIGHUP reloads the configuration.";

pub const SERVICE_PAUSE: &str = "\
Examples:
  evenkeel service pause eth0
  evenkeel service pause";

pub const SERVICE_RESUME: &str = "\
Examples:
  evenkeel service resume eth0
  evenkeel service resume";

pub const SERVICE_RELOAD: &str = "\
Examples:
  evenkeel service --check /etc/evenkeel/evenkeel.toml
  evenkeel service reload";

pub const STATUS: &str = "\
Examples:
  evenkeel status
  evenkeel status eth0 --format json";
pub const TOP: &str = "\
Examples:
  Which flows share a queue, and where are packets lost now?
    evenkeel top eth0
  Record for ten minutes, for a bug report:
    evenkeel top eth0 --record incident.jsonl --for 10min
  Look at the recording, on any machine:
    evenkeel top --replay incident.jsonl

Press ? for the keys. `q`, SIGTERM or the end of --for ends the command with exit code 0, Ctrl-C
(SIGINT) or SIGHUP with 130.";

pub const TUNE: &str = "\
Examples:
  Every change with its undo, as shell lines; changes nothing:
    evenkeel tune eth0
  Make the changes, and count losses before and after:
    evenkeel tune eth0 --apply
  One change only, also after a reboot:
    evenkeel tune eth0 --apply rx-ring-drops --persist systemd";

pub const REVERT: &str = "\
Examples:
  Restore everything in this network namespace:
    evenkeel revert
  Restore one interface:
    evenkeel revert eth0";

pub const NIC: &str = "\
Examples:
  evenkeel nic list
  evenkeel nic show i82599
  evenkeel nic probe eth0";

pub const NIC_LIST: &str = "\
Examples:
  evenkeel nic list
  evenkeel nic list --nic-dir my-models";

pub const NIC_SHOW: &str = "\
Examples:
  evenkeel nic show i82599
  evenkeel nic show i82599 --svg";

pub const NIC_PROBE: &str = "\
Examples:
  evenkeel nic probe eth0
  evenkeel nic probe eth0 --nic-dir my-models";

pub const SEARCH: &str = "\
Examples:
  evenkeel search bench --flows 100 --repeat 5
  evenkeel search solve --nic i82599 --queues 4 --generate 60 --policy balance";

pub const SEARCH_SOLVE: &str = "\
Examples:
  Sixty generated flows:
    evenkeel search solve --nic i82599 --queues 4 --generate 60 --policy balance
  Flows from a trace, with your own policy:
    evenkeel search solve --nic ntuple --queues 4 --flows f.csv --policy p.toml";

pub const SEARCH_BENCH: &str = "\
Examples:
  All sizes of Dragonet's Table 1:
    evenkeel search bench
  One size, quickly:
    evenkeel search bench --flows 100 --repeat 5";

pub const STEER: &str = "\
Examples:
  Print the plan, without root and without the NIC:
    evenkeel steer eth0 --policy balance --plan --model i82599 --generate 20
  Balance received flows over all queues until Ctrl-C:
    evenkeel steer eth0 --policy balance
  Your own policy, which is read again when it changes:
    evenkeel steer eth0 --policy policy.toml";

pub const METRICS: &str = "\
Examples:
  What is exported?
    evenkeel metrics
  Serve http://127.0.0.1:9836/metrics until Ctrl-C, for Prometheus; needs root:
    evenkeel metrics --listen 127.0.0.1:9836
  For node_exporter's textfile collector:
    evenkeel metrics eth0 --textfile /var/lib/prometheus/node-exporter/evenkeel.prom";

pub const CHECK: &str = "\
Examples:
  What is wrong on this host, and what fixes it?
    evenkeel check
  Where are packets lost now?
    evenkeel check eth0 --watch 10s
  How much throughput would each fix gain? Simulated; --machine is optional (`evenkeel calibrate`):
    evenkeel check --simulate --machine my-host.toml

Exits with 1 if a finding has high severity, or a killed run left settings to restore. With
--explain, exits with 0.";

pub const CALIBRATE: &str = "\
Examples:
  What do copies, wakeups and packets cost here? Packets need root:
    evenkeel calibrate
  Write a machine profile, and simulate the fixes of this host with it:
    evenkeel calibrate -o my-host.toml --for 60s
    evenkeel check --simulate --machine my-host.toml";

pub const STUDY: &str = "\
Examples:
  evenkeel study tc --quick --on sim
  evenkeel study tc --resume evenkeel-records/study-tc-sim-quick";

pub const STUDY_TC: &str = "\
Examples:
  Every scenario in the simulator, short:
    evenkeel study tc --quick --on sim
  One scenario and two qdiscs on this machine's kernel:
    evenkeel study tc --scenario tc-latency --qdisc pfifo --qdisc htb
  Resume an interrupted study:
    evenkeel study tc --resume evenkeel-records/study-tc-netns-full";

pub const COMPARE: &str = "\
Examples:
  evenkeel compare evenkeel-records/before evenkeel-records/after
  Exit with 1 unless the change is shown to be within 5 %:
    evenkeel compare before after --metric nfm.1s --within 5%";

pub const REPORT: &str = "\
Examples:
  A page of a record, report.html:
    evenkeel report evenkeel-records/after
  Before and after a change, on one page:
    evenkeel report evenkeel-records/before evenkeel-records/after -o change.html
  A study, to standard output:
    evenkeel report evenkeel-records/study-tc-sim-quick -o -";

pub const GENERATE: &str = "\
Examples:
  evenkeel generate man /usr/local/share/man/man1
  evenkeel generate completions completions";

pub const CONGESTION: &str = "\
Examples:
  evenkeel congestion list
  evenkeel congestion load lola
  evenkeel congestion unload";

pub const CONGESTION_LIST: &str = "\
Examples:
  evenkeel congestion list
  For a script:
    evenkeel congestion list --format json";

pub const CONGESTION_LOAD: &str = "\
Examples:
  For programs that choose it, such as iperf3 --congestion lola:
    evenkeel congestion load lola
  For all new connections of this network namespace, with 2 ms of queueing delay:
    evenkeel congestion load lola --target 2ms --default
  Until `evenkeel congestion unload`:
    evenkeel congestion load lola --pin

SIGTERM or the end of --for ends the command with exit code 0, Ctrl-C (SIGINT) or SIGHUP with 130.";

pub const CONGESTION_UNLOAD: &str = "\
Examples:
  evenkeel congestion unload
  evenkeel congestion unload lola2";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use clap::{Command, CommandFactory, Parser};

    use crate::arguments::Arguments;

    fn commands(command: &Command, path: &str, found: &mut Vec<(String, String)>) {
        if command.is_hide_set() || command.get_name() == "help" {
            return;
        }
        let path = if path.is_empty() {
            command.get_name().to_owned()
        } else {
            format!("{path} {}", command.get_name())
        };
        let help = command.get_after_long_help().or(command.get_after_help());
        found.push((path.clone(), help.map(ToString::to_string).unwrap_or_default()));
        for subcommand in command.get_subcommands() {
            commands(subcommand, &path, found);
        }
    }

    #[test]
    fn every_help_ends_with_examples_that_the_command_line_takes() {
        let mut found = Vec::new();
        commands(&Arguments::command(), "", &mut found);
        assert!(found.len() > 15, "{found:?}");
        for (path, help) in found {
            let examples: Vec<&str> =
                help.lines().map(str::trim).filter(|line| line.starts_with("evenkeel ")).collect();
            assert!((2..=3).contains(&examples.len()), "{path} has {} examples", examples.len());
            for example in examples {
                let parsed = Arguments::try_parse_from(example.split_whitespace());
                assert!(parsed.is_ok(), "{path}: {example}: {}", parsed.unwrap_err());
            }
        }
    }
}
