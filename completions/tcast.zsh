#compdef tcast
# Completions of tcast for zsh. They come from the program itself, which must be on the PATH.

_tcast() {
    local -a whole unfinished
    local value help
    while IFS=$'\t' read -r value help; do
        value=${${value//\\/\\\\}//:/\\:}${help:+:$help}
        if [[ $value == *[=/] ]]; then
            unfinished+=("$value")
        else
            whole+=("$value")
        fi
    done < <(TCAST_COMPLETE=zsh tcast -- "${(@Q)words[1,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
    local -i found=1
    (( $#whole )) && _describe -V tcast whole && found=0
    (( $#unfinished )) && _describe -V tcast unfinished -S '' && found=0
    return found
}

# A file in $fpath is the function itself; a file that is sourced names it.
if [[ ${funcstack[1]-} == _tcast ]]; then
    _tcast "$@"
else
    compdef _tcast tcast
fi
