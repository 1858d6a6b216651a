package backend

import (
	"fmt"
	"io/fs"
	"syscall"
)

func statInode(info fs.FileInfo) string { return fmt.Sprint(info.Sys().(*syscall.Stat_t).Ino) }
