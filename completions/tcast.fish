# Completions of tcast for fish. They come from the program itself, which must be on the PATH.

function __tcast_complete
    set --local words (commandline --current-process --tokenize --cut-at-cursor)
    TCAST_COMPLETE=fish tcast -- $words (commandline --current-token --cut-at-cursor) 2>/dev/null
end

complete --command tcast --no-files --keep-order --arguments '(__tcast_complete)'
