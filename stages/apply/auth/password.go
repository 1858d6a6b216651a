package auth

import (
	"encoding/base64"
	"fmt"

	"golang.org/x/crypto/bcrypt"
)

// HashPassword returns what a request carries instead of the password: the base64 of its bcrypt hash. A cost
// out of bcrypt's range becomes its default, as in etcd. It takes as long as the cost says: about 50 ms at 10.
func HashPassword(password string, cost int) (string, error) {
	if cost < bcrypt.MinCost || cost > bcrypt.MaxCost {
		cost = bcrypt.DefaultCost
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), cost)
	if err != nil {
		return "", fmt.Errorf("hash the password: %w", err)
	}
	return base64.StdEncoding.EncodeToString(hash), nil
}

// CheckPassword says whether name may log in with password, and the auth revision under which it may: if that
// is no longer the store's when the login is applied, the check must be repeated.
//
// ErrNotEnabled, ErrFailed, ErrNoPasswordUser. It takes as long as HashPassword.
//
// Rule: contract/client-api.md section 9.5.
func (t *Table) CheckPassword(name, password string) (revision uint64, err error) {
	if !t.enabled {
		return 0, ErrNotEnabled
	}
	u, ok := t.user(name)
	if !ok || name == "" {
		return 0, ErrFailed
	}
	if u.noPassword {
		return 0, ErrNoPasswordUser
	}
	if bcrypt.CompareHashAndPassword(u.password, []byte(password)) != nil {
		return 0, ErrFailed
	}
	return t.revision, nil
}

// decodeHash reverses HashPassword's base64.
func decodeHash(hashed string) ([]byte, error) {
	b, err := base64.StdEncoding.DecodeString(hashed)
	if err != nil {
		return nil, ErrNoPasswordUser
	}
	return b, nil
}
