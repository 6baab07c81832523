# Completions of tcast for PowerShell. They come from the program itself, which must be on the PATH.

Register-ArgumentCompleter -Native -CommandName 'tcast' -ScriptBlock {
    param($word, $command, $cursor)
    # Elements that end before the cursor; the one that it stands in is $word.
    $words = @($command.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursor } | ForEach-Object {
        if ($_ -is [System.Management.Automation.Language.StringConstantExpressionAst]) { $_.Value } else { $_.Extent.Text }
    })
    $before = $env:TCAST_COMPLETE
    $env:TCAST_COMPLETE = 'powershell'
    # Older versions do not pass on an empty word, so the last one starts with a sign that the program takes off.
    $replies = @(tcast '--' @words "=$word" 2>$null)
    $env:TCAST_COMPLETE = $before
    $replies | ForEach-Object {
        $value, $help = $_ -split "`t", 2
        $text = if ($value -match '[^\w./\\:=,+*-]') { "'" + $value.Replace("'", "''") + "'" } else { $value }
        $tip = if ($help) { $help } else { $value }
        [System.Management.Automation.CompletionResult]::new($text, $value, 'ParameterValue', $tip)
    }
}
