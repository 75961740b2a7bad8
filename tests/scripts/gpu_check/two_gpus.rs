//! Checks of two GPUs together, with stand-in programs.

use super::stand_in::Machine;

/// A bench of exchanges between two GPUs, with this many us at each size, compared with NCCL at 100.
fn exchanges_of(us: &str, note: &str) -> Machine {
    let machine = Machine::new("GPU 0\\nGPU 1");
    let rows = |name: &str, us: &str, more: &str| {
        let row = r#"echo "{\"name\":\"NAME/${size}x$size over 2\",\"block_us\":US,\"size\":0MORE}""#;
        let row = row.replace("NAME", name).replace("US", us).replace("MORE", more);
        format!("echo \"$FLUX_PEER_ACCESS $FLUX_MODEL $*\" >>\"$RAN\"; for size in 512 1024 2048; do {row}; done")
    };
    machine.program("bin/flux", &rows("exchange", us, note));
    machine.program("tools/python", &rows("nccl", "100.0", ""));
    machine
}

#[test]
fn what_gpus_exchange_is_measured_beside_nccl_by_both_ways() {
    let checked = exchanges_of("99.5", "").check(&["exchange"], &[]).passes();
    let figures = "512: 99.5 / 100.0; 1024: 99.5 / 100.0; 2048: 99.5 / 100.0;";
    let expected = format!("into each other's memory {figures} through memory of the host {figures}");
    assert_eq!(checked.result, format!("us of a block, ours / NCCL: {expected}"));
    let ran = checked.ran;
    let nccl: Vec<_> = ran.iter().filter(|line| line.contains("bench_nccl.py")).collect();
    assert!(
        nccl.len() == 2 && !nccl[0].contains("--no-peer-access") && nccl[1].contains("--no-peer-access"),
        "{ran:?}"
    );
    assert!(ran[0].starts_with("1  bench exchange/") && ran[2].starts_with("0  bench exchange/"), "{ran:?}");

    for (us, note, expected) in [
        ("100.5", "", "slower than NCCL: into each other's memory at 512: 100.5, NCCL 100.0;"),
        ("0", "", "slower than NCCL: into each other's memory at 512: 0, NCCL 100.0;"),
        ("NaN", "", "slower than NCCL: into each other's memory at 512: nan, NCCL 100.0;"),
        ("null", "", "no number block_us in "),
        ("", "", "not JSON: "),
        ("1.0", r#",\"note\":\"no link\""#, "these GPUs do not reach each other's memory: no link"),
    ] {
        let result = exchanges_of(us, note).check(&["exchange"], &[]).fails().result;
        assert!(result.starts_with(expected), "{us}: {result}");
    }
}

#[test]
fn replicas_need_two_gpus_of_nearly_twice_the_speed_that_give_the_same_bytes() {
    let machine = Machine::new("");
    // An image is its seed, and for the second GPU the value of SECOND; the bench has the factor FACTOR.
    machine.program(
        "bin/flux",
        r#"if [ "$1" = bench ]; then
            for size in 512 1024; do
                echo "{\"name\":\"replicas/${size}x$size x 2\",\"size\":$size,\"factor\":$FACTOR}"
            done
            exit
        fi
        while [ $# -gt 0 ]; do
            case "$1" in
                --seed) seed=$2 ;;
                --device) device=$2 ;;
                -n) count=$2 ;;
                -o) out=$2 ;;
                -v) echo "cuda:1: 7.85 GB of weights were copied from GPU 0" ;;
            esac
            shift
        done
        end=$((seed + count))
        while [ "$seed" -lt "$end" ]; do
            [ "$count" = 1 ] || name=-$seed
            case "$device" in *,*) other=$SECOND ;; esac
            echo "$seed$other" >"${out%.png}$name.png"
            seed=$((seed + 1))
        done"#,
    );
    let check = |gpus: &str, factor: &str, second: &str| {
        machine.gpus(gpus);
        machine.check(&["replicas"], &[("FACTOR", factor), ("SECOND", second)])
    };
    let whole = check("H200\\nH200", "1.97", "").log;
    assert!(whole.contains("512 by 1: 1.97, 1024 by 1: 1.97, 512 by 4: 1.97, 1024 by 4: 1.97,"), "{whole}");
    assert!(whole.contains("the same bytes; 7.85 GB of weights were copied\n"), "{whole}");
    for (gpus, factor, second, why) in [
        ("H200", "1.97", "", "need two GPUs, this machine shows 1"),
        ("H200\\nH200", "1.94", "", "the factor of 512 by 1: 1.94, expected at least 1.95"),
        ("H200\\nH200", "1.97", "x", "another image than one"),
    ] {
        let result = check(gpus, factor, second).fails().result;
        assert!(result.contains(why), "{result}");
    }
}

/// Two GPUs that take this share of one GPU's time for a step and for the rest; they generate nothing.
fn gpus_with_times_of(gpus: &str, step_ms: &str, other_ms: &str) -> Machine {
    let machine = Machine::new(gpus);
    machine.program("bin/gpu", r#"echo "test result: ok. 11 passed; 0 failed; 0 ignored""#);
    let does = r#"echo "$FLUX_PEER_ACCESS $*" >>"$RAN"
        row() { echo "{\"name\":\"$1\",\"step_ms\":$2,\"decode_ms\":$3,\"total_ms\":$3}"; }
        case "$*" in
            bench*) for name in stages/512x512 stages/1024x1024 stages/2048x2048 stages/edit-1024x1024+1; do
                case "$*" in *"${name%+1}"*) row "$name" 100 100; row "$name over 2" STEP OTHER ;; esac
            done ;;
            *" -v "*) echo "two GPUs share each image, which is faster than one" ;;
            # Far longer than a program takes to start beside other tests.
            *"--device cuda:0 "*2048*) sleep 0.4 ;;
        esac"#;
    machine.program("bin/flux", &does.replace("STEP", step_ms).replace("OTHER", other_ms));
    machine
}

#[test]
fn two_gpus_take_less_than_their_share_of_one_or_the_check_fails() {
    let checked = gpus_with_times_of("GPU 0\\nGPU 1", "50.5", "50").check(&["gpus"], &[]).passes();
    assert!(checked.log.contains("\nresult: test result: ok. 11 passed; 0 failed\n"), "{}", checked.log);
    let figures = "two GPUs / one: bf16 512x512 step 0.505 decode 0.500 image 0.500; bf16 1024x1024 step 0.505 ";
    assert!(checked.result.starts_with(figures), "{}", checked.result);
    let hosts: Vec<_> = checked.ran.iter().filter(|line| line.starts_with("0 bench")).collect();
    assert!(hosts.len() == 1 && hosts[0].contains("stages/1024x1024"), "{:?}", checked.ran);

    let slow = gpus_with_times_of("GPU 0\\nGPU 1", "57.5", "50").check(&["gpus"], &[]).fails().result;
    let rows = [
        "bf16 2048x2048 step: 0.575, expected at most 0.56;",
        "bf16 edit-1024x1024+1 step: 0.575, expected at most 0.57;",
    ];
    assert!(rows.iter().all(|row| slow.contains(row)), "{slow}");
    assert!(!slow.contains("1024x1024 step: 0.575, expected at most 0.60"), "{slow}");
    let nothing = gpus_with_times_of("GPU 0\\nGPU 1", "0", "50").check(&["gpus"], &[]).fails().result;
    assert!(nothing.contains("bf16 512x512 step: 0.000, expected at most 0.70;"), "{nothing}");
}

#[test]
fn frames_in_turn_by_two_gpus_are_nearly_twice_those_of_one() {
    let machine = Machine::new("9.0");
    let bench = |two: u32| {
        let row = r#"{\"name\":\"live\",\"frames_per_s\":$rate,\"p50_ms\":20,\"p95_ms\":25}"#;
        format!("case \"$*\" in *cuda:0,1*) rate={two} ;; *) rate=20 ;; esac; echo \"{row}\"")
    };
    machine.gpus("9.0\\n9.0");
    machine.program("bin/flux", &bench(40));
    let result = machine.check(&["live-two"], &[]).passes().result;
    assert!(result.contains("20.00 a second by one, 40.00 by two, 2.000 times"), "{result}");
    machine.program("bin/flux", &bench(36));
    let result = machine.check(&["live-two"], &[]).fails().result;
    assert!(result.contains("times the frames of one: 1.800, expected at least 1.95"), "{result}");
    machine.gpus("9.0");
    assert!(machine.check(&["live-two"], &[]).fails().result.contains("need two GPUs"));
}

/// A bound with an unknown name would check nothing.
#[test]
fn every_bound_of_two_gpus_is_one_of_a_figure() {
    let slow = gpus_with_times_of("9.0\\n9.0", "200", "200").check(&["gpus"], &[]).fails().result;
    for figure in [
        "bf16 512x512 step",
        "bf16 1024x1024 step",
        "bf16 1024x1024 decode",
        "bf16 1024x1024 image",
        "bf16 2048x2048 step",
        "bf16 2048x2048 decode",
        "bf16 edit-1024x1024+1 step",
        "fp8 1024x1024 step",
        "bf16 with guidance 1024x1024 step",
        "bf16 through the host 1024x1024 step",
    ] {
        assert!(slow.contains(&format!("{figure}: 2.000, expected at most")), "{figure}: {slow}");
    }
    assert_eq!(slow.matches("expected").count(), 10, "{slow}");
}
