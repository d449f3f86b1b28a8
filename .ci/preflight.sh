# Prints in one line why the environment can't be set up here, or nothing. Run by the Makefile with
# PYTHON (the interpreter to use) and VENV (the folder to make).
# NEEDED_KB: 2 GB of environment and what pip unpacks on its way there.
NEEDED_KB=${NEEDED_KB:-3000000}
WANTED='Headrace needs Python 3.11, 3.12 or 3.13'

if ! command -v "$PYTHON" >/dev/null 2>&1; then
    echo "$WANTED, and there is no '$PYTHON' here: name one with PYTHON=/path/to/python3"
    exit
fi
version=$("$PYTHON" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=
case $version in
    3.11 | 3.12 | 3.13) ;;
    '')
        echo "$WANTED, and '$PYTHON' doesn't run: name another with PYTHON=/path/to/python3"
        exit
        ;;
    *)
        echo "$WANTED, and '$PYTHON' is $version: name another with PYTHON=/path/to/python3"
        exit
        ;;
esac
if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    echo "'$PYTHON' comes without the venv module: install it (on Debian and Ubuntu: apt-get install python3-venv)"
    exit
fi
free=$(df -Pk . 2>/dev/null | awk 'NR == 2 { print $4 }')
if [ -n "$free" ] && [ ! -x "$VENV/bin/headrace" ] && [ "$free" -lt "$NEEDED_KB" ]; then
    echo "Setting up takes $((NEEDED_KB / 1000000)) GB of disk, and $((free / 1000)) MB are free in $(pwd)"
fi
