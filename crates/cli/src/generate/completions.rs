//! Completion scripts of shells: clap's for options and commands, and an addition for paths in
//! images, which `sapwood complete` lists.

use clap::Command;
use clap_complete::Shell;

/// Bash breaks words at colons, so the words of a place are joined first, and the candidates lose
/// what precedes the last word.
const BASH: &str = r#"
_sapwood_in_images() {
    local last=${COMP_WORDS[COMP_CWORD]} at=$COMP_CWORD word before name
    word=$last
    while ((at > 1)) && [[ ${COMP_WORDS[at]} == : || ${COMP_WORDS[at - 1]} == : ]]; do
        ((--at))
        word=${COMP_WORDS[at]}$word
    done
    if [[ $word != *:* ]]; then
        _sapwood "$@"
        return
    fi
    if [[ $last == : ]]; then before=$word; else before=${word%"$last"}; fi
    before=${before//\\/}
    word=${word#[\"\']}
    word=${word//\\/}
    COMPREPLY=()
    while IFS= read -r name; do
        COMPREPLY+=("${name#"$before"}")
    done < <("${COMP_WORDS[0]}" complete -- "$word" 2>/dev/null)
    # Has readline quote names. It fails outside of a completion.
    compopt -o filenames 2>/dev/null || true
    if [[ ${COMPREPLY[0]-} == */ ]]; then compopt -o nospace 2>/dev/null || true; fi
    return 0
}
complete -F _sapwood_in_images -o bashdefault -o default sapwood
"#;

const ZSH: &str = r#"
_sapwood_in_images() {
    [[ $PREFIX == *:* ]] || return 1
    local -a found
    found=("${(@f)$("${words[1]}" complete -- "${(Q)PREFIX}" 2>/dev/null)}")
    [[ -n $found[1] ]] || return 1
    compadd -S '' -- "${found[@]}"
}
"#;

const FISH: &str = r#"
complete -c sapwood -f -n 'string match -q "*:*" -- (commandline -ct)' \
    -a '(sapwood complete -- (commandline -ct) 2>/dev/null)'
"#;

/// The script of a shell.
pub(super) fn script(shell: Shell, command: &mut Command) -> String {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, command, "sapwood", &mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match shell {
        Shell::Bash => text + BASH,
        Shell::Fish => text + FISH,
        Shell::Zsh => {
            let begin = "\n_sapwood() {\n";
            let hook = format!("{ZSH}{begin}    _sapwood_in_images && return 0\n");
            text.replacen(begin, &hook, 1)
        }
        _ => text,
    }
}
