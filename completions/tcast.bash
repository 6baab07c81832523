# Completions of tcast for bash. They come from the program itself, which must be on the PATH.

_tcast() {
    local reply
    COMPREPLY=()
    # bash breaks words at characters that tcast's words hold (--to=f16, GLOB=DTYPE): the program takes the line apart.
    while IFS=$'\t' read -r reply _; do
        COMPREPLY+=("$reply")
    done < <(TCAST_COMPLETE=bash tcast -- "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=/] ]]; then
        compopt -o nospace 2>/dev/null # the word goes on; bash 3 has no compopt
    fi
}

# Before bash 4.4 there is no nosort.
complete -o nosort -F _tcast tcast 2>/dev/null || complete -F _tcast tcast
