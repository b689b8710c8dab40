# shellcheck shell=bash disable=SC2154 # lib.sh sets root and target
# Shared by the scripts that run random plans by their seeds: the options, the program, and the settings. Sourced by bash after
# lib.sh, never run by itself. Provides: run_plans.

# What to run, unless the options say otherwise.
plans=2400 first=$((EPOCHSECONDS % 100000 * 10000)) times=1 minutes='' library=${SANSHIM_LIBRARY-} settings=(default early)

read_options() {
    while [[ $# -gt 0 ]]; do
        case $1 in
        -h | --help) usage && exit ;;
        --plans)
            plans=$(number "$1" "${2-}") || exit 1
            shift
            ;;
        --minutes)
            minutes=$(number "$1" "${2-}") || exit 1
            shift
            ;;
        --first | --seed)
            [[ ${2-} =~ ^[0-9]{1,15}$ ]] || fail "$1 needs a seed, not '${2-}'"
            first=$2
            [[ $1 == --first ]] || plans=1 times=20
            shift
            ;;
        --native) settings=(native) ;;
        --library) library=${2-} && shift ;;
        *) fail "what is '$1'? See --help" ;;
        esac
        shift
    done
}

# Compiles the program of a folder of tests/, and sets program: build_program FOLDER
build_program() {
    if [[ ${settings[*]} != native && -z $library ]]; then
        build_release
        library=$target/release/libsanshim.so
    fi
    command -v cc >/dev/null || fail "cc is missing: run scripts/install, or install gcc"
    mkdir -p "$target/$1"
    program=$target/$1/$1
    cc -O1 -g -Wall -Wextra -Werror -Wno-unused-value -U_FORTIFY_SOURCE -pthread -rdynamic -o "$program.$$" "$root/tests/$1"/*.c "$root"/tests/plans/*.c
    mv "$program.$$" "$program"
}

# Runs plans in a setting: run SETTING FIRST COUNT
run() {
    local -a variables=()
    [[ $1 == native ]] || variables=("LD_PRELOAD=$library")
    [[ $1 != early ]] || variables+=(SANSHIM_MOVE_AFTER=0)
    [[ $1 != still ]] || variables+=(HOSTILE_STILL=1)
    env "${variables[@]}" "$program" "$2" "$3"
}

# What went wrong is tried natively too: try_natively SCRIPT FILE, which has what the program said.
try_natively() {
    local seed
    for seed in $(sed -n 's/^seed \([0-9]*\): [^h].*/\1/p' "$2" | sort -un | head -n 20); do
        say "natively, 10 times, seed $seed; replay it: scripts/$1 ${CRASH_WITH:+--with $CRASH_WITH }--seed $seed"
        for _ in {1..10}; do run native "$seed" 1 || say "this fails natively too"; done
    done
}

# Runs the plans that the options ask for, of the program in a folder of tests/: run_plans FOLDER [OPTION...]
run_plans() {
    local folder=$1 said setting time status=0 ends
    shift
    read_options "$@"
    build_program "$folder"
    said=$(mktemp)
    # shellcheck disable=SC2064 # the file of now
    trap "rm -f '$said'" EXIT
    ends=$((SECONDS + ${minutes:-0} * 60))
    while :; do
        for setting in "${settings[@]}"; do
            for ((time = 0; time < times; time++)); do
                say "$plans plans from $first on, $setting"
                run "$setting" "$first" "$plans" 2> >(tee "$said" >&2) && continue
                status=1
                [[ $setting == native ]] || try_natively "$folder" "$said"
            done
        done
        ((SECONDS < ends)) || break
        first=$((first + plans))
    done
    exit $status
}
