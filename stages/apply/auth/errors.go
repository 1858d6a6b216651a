package auth

import "errors"

// Why a request is refused.
var (
	ErrUserEmpty            = errors.New("auth: user name is empty")
	ErrUserAlreadyExists    = errors.New("auth: user already exists")
	ErrUserNotFound         = errors.New("auth: user not found")
	ErrRoleEmpty            = errors.New("auth: role name is empty")
	ErrRoleAlreadyExists    = errors.New("auth: role already exists")
	ErrRoleNotFound         = errors.New("auth: role not found")
	ErrRoleNotGranted       = errors.New("auth: role is not granted to the user")
	ErrPermissionNotGiven   = errors.New("auth: permission not given")
	ErrPermissionNotGranted = errors.New("auth: permission is not granted to the role")
	ErrPermissionDenied     = errors.New("auth: permission denied")
	ErrOldRevision          = errors.New("auth: revision in header is old")
	ErrInvalidManagement    = errors.New("auth: invalid auth management")
	ErrRootUserNotExist     = errors.New("auth: root user does not exist")
	ErrRootRoleNotExist     = errors.New("auth: root user does not have root role")
	ErrNameTooLong          = errors.New("auth: name of user or role is too long")
	ErrNotEnabled           = errors.New("auth: authentication is not enabled")
	ErrFailed               = errors.New("auth: authentication failed, invalid user ID or password")
	ErrInvalidToken         = errors.New("auth: invalid auth token")
	// ErrNoPasswordUser also answers a password hash that is no base64. Clients see this very text.
	ErrNoPasswordUser = errors.New("auth: authentication failed, password was given for no password user")
)
